"""The config hash: it covers the settings that are no defaults, whatever else this process has imported."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_geometric.graphgym import register
from torch_geometric.graphgym.config import cfg
from yacs.config import CfgNode

from graphgps_kmip.attention import FullAttention
from graphgps_kmip.gym.config_hash import config_hash
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.planned_runs import configured, planned_hash, planned_runs
from graphgps_kmip.registry import register_attention
from tests.processes import forked

ROOT = Path(__file__).parents[2]
DIGITS = "configs/quickstart/digits-kmip.yaml"
OWN = "examples/my_attention/digits-linear.yaml"


pytestmark = pytest.mark.usefixtures("own_registry", "graphgym_registries")


def compute_hash(*argv: str) -> str:
    load_config(cfg, ROOT / DIGITS, list(argv))
    return config_hash(cfg)


@pytest.mark.parametrize(
    ("argv", "counts"),
    [
        ("gt.layers 7", True),
        ("seed 1", True),
        ("dataset.split_index 1", True),
        ("recipe.ffn False", True),
        ("posenc_RRWP.ksteps 7", True),
        ("recipe.ffn True", False),  # a default, which the file does not write
        ("out_dir elsewhere num_workers 3 train.auto_resume True wandb.use True spexphormer.scores elsewhere", False),
        ("gt.JK True", False),  # nothing reads it
    ],
)
def test_a_setting_counts_if_it_is_no_default_and_changes_numbers(argv: str, counts: bool) -> None:
    assert (compute_hash(*argv.split()) != compute_hash()) == counts


def test_the_width_counts_unless_a_budget_decides_it() -> None:
    budget = ("model.auto_satisfy_param_budget", "True")
    assert compute_hash("gnn.dim_inner", "48") != compute_hash()
    assert compute_hash(*budget, "gnn.dim_inner", "48") == compute_hash(*budget) != compute_hash()


def test_runs_of_an_experiment_share_a_hash() -> None:
    compute_hash()
    first = config_hash(cfg, per_run=False)
    compute_hash("seed", "1", "dataset.split_index", "2")
    assert config_hash(cfg, per_run=False) == first


class Peculiar(FullAttention):
    def __init__(self, dim: int, num_heads: int, dropout: float = 0.0, *, strength: float = 1.0) -> None:
        super().__init__(dim, num_heads, dropout)
        self.strength = strength


def test_what_others_register_changes_nothing_unless_a_run_names_it_or_sets_its_options() -> None:
    before = compute_hash()
    register_attention("Peculiar", Peculiar)

    register.register_config("theirs", lambda node: node.update({"theirs": CfgNode({"width": 3})}))
    assert compute_hash() == before
    settings = [
        ("gt.layer_type", "GatedGCN+Peculiar"),
        ("gt.layer_type", "GatedGCN+Peculiar", "gt.peculiar.strength", "2.0"),
        ("gt.peculiar.strength", "2.0"),
        ("theirs.width", "4"),
    ]
    assert len({before, *(compute_hash(*argv) for argv in settings)}) == 5


@pytest.mark.parametrize("splits", ["[]", "[2, 1]"])
def test_a_planned_run_has_the_hash_of_its_own_config_whatever_was_planned_before(splits: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"base: {ROOT / DIGITS}\nseed: 5\nrun_multiple_splits: {splits}\n")
    for argv in ("", "seed 3", "seed 0", "seed 0 dataset.split_index 2", "dataset.split_index 0", "gt.layers 7"):
        load_config(cfg, file, argv.split())
        with configured(planned_runs(1)[0]):
            expected = config_hash(cfg)
        assert planned_hash(["--cfg", str(file), *argv.split()], tmp_path) == expected, argv


IMPORTS = "from pathlib import Path; from graphgps_kmip.gym.planned_runs import planned_hash\n"


def test_hashes_are_the_same_in_any_order_of_loading() -> None:
    # OWN first: as main.py trains it, and the manifest's process must expect the same
    code = IMPORTS + "for file in {}: print(file, planned_hash(['--cfg', file], Path()))"
    ended = forked(IMPORTS, [code.format(files) for files in ([OWN, DIGITS], [DIGITS, OWN])])
    assert [done.returncode for done in ended] == [0, 0], [done.stderr for done in ended]
    first, last = (dict(line.split() for line in done.stdout.splitlines()) for done in ended)
    assert first == last
    assert len(set(first.values())) == 2
