"""Facts of the data travel as values: assembly leaves GraphGym's config as it was, components of others see them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.graphgym import register as graphgym
from torch_geometric.graphgym.config import cfg
from yacs.config import CfgNode

import main
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.gym.config_hash import config_hash
from graphgps_kmip.gym.config_loading import flatten, load_config
from graphgps_kmip.gym.data_loading import load_dataset
from graphgps_kmip.gym.experiment import Parts, assemble, run_experiment
from graphgps_kmip.gym.network_building import served, with_values
from graphgps_kmip.gym.planned_runs import configured, planned_runs

ROOT = Path(__file__).parents[2]
DIGITS = "configs/quickstart/digits-kmip.yaml"
VOC = "configs/LRGB/pascalvoc-kmip.yaml"  # its width follows from a budget
SMALL = "dataset.sample True num_threads 1 gt.layers 1 optim.max_epoch 1".split()
BUDGET = "model.auto_satisfy_param_budget True model.param_budget 40000".split()
ERN = "dataset.node_encoder_name LinearNode+ERN posenc_ERN.enable True posenc_ERN.model Linear".split()
GNN = "model.type gnn gnn.layer_type gatedgcnconv gnn.stage_type skipsum".split()
# Name -> config, words, and the keys of the run's own config that differ from those of the file
RUNS: dict[str, tuple[str, list[str], set[str]]] = {
    "digits": (DIGITS, [], set()),
    "budget": (DIGITS, BUDGET, {"gnn.dim_inner", "gt.dim_hidden", "gt.kmip.dim_val"}),
    "largest graph": (DIGITS, ERN, {"share.dim_er"}),
    "GraphGym's network": (DIGITS, GNN, set()),
    "edge features": (VOC, ["prep.exp", "True"], {"gnn.dim_inner", "gt.dim_hidden", "gt.kmip.dim_val"}),
}
FACTS = {"share.dim_in", "share.dim_out", "share.num_splits", "dataset.edge_dim"}


pytestmark = pytest.mark.usefixtures("small_samples", "graphgym_registries")


@pytest.fixture(autouse=True)
def _in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def assemble_run(file: str, argv: list[str]) -> tuple[Parts, dict[str, Any]]:
    load_config(cfg, ROOT / file, [*SMALL, *argv])
    with configured(planned_runs(1)[0]):
        before, groups = copy.deepcopy(dict(flatten(cfg))), dict(cfg)
        parts = assemble()
        assert dict(flatten(cfg)) == before, "assembly changed the config"
        assert all(cfg[name] is group for name, group in groups.items())
    return parts, before


@pytest.mark.parametrize("name", RUNS)
def test_the_assembly_of_a_run_leaves_the_config_as_it_was(name: str) -> None:
    file, argv, searched = RUNS[name]
    parts, before = assemble_run(file, argv)
    config = dict(flatten(parts.config))
    assert {key for key, value in config.items() if value != before.get(key)} <= FACTS | searched
    assert {key for key in searched if config[key] != before[key]} == searched
    info = parts.info
    assert [config[key] for key in sorted(FACTS)] == [info.dim_edge, info.dim_in, info.dim_out, 3]
    assert config_hash(parts.config) == config_hash(cfg)
    assert parts.config.is_frozen()


def test_a_run_writes_its_config_with_the_facts_of_its_data(tmp_path: Path) -> None:
    argv = [*SMALL, *BUDGET, "out_dir", str(tmp_path / "out")]
    assert main.run(["--cfg", str(ROOT / DIGITS), *argv]) == 0
    with (tmp_path / "out-sample" / "digits-kmip" / "0" / "config.yaml").open() as file:
        written = CfgNode.load_cfg(file)
    parts, _ = assemble_run(DIGITS, [*BUDGET, "out_dir", str(tmp_path / "out")])
    keys = [*FACTS, *RUNS["budget"][2]]
    assert [dict(flatten(written))[key] for key in keys] == [dict(flatten(parts.config))[key] for key in keys]
    assert written.gnn.dim_inner != 64, "the width of the file, not that of the search"


def test_graphgyms_own_main_finds_the_facts_in_the_config_after_our_loader() -> None:
    for file, argv, edge_dim in ((VOC, [], 2), (DIGITS, ERN, 0)):
        load_config(cfg, ROOT / file, [*SMALL, *argv])
        graphs = load_dataset(cfg.dataset.format, cfg.dataset.name, cfg.dataset.dir).graphs
        assert cfg.dataset.edge_dim == edge_dim
    assert cfg.share.dim_er == graphs[0].pestat_ERN.size(1)


SEEN: list[tuple[int, ...]] = []


def facts_in_cfg() -> tuple[int, ...]:
    return cfg.share.dim_in, cfg.share.dim_out, cfg.dataset.edge_dim, cfg.gnn.dim_inner


class SeesFacts(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        SEEN.append(facts_in_cfg())
        self.linear = nn.Linear(cfg.share.dim_in, dim)

    def forward(self, batch: Batch) -> Batch:
        batch.x = self.linear(batch.x)
        return batch


@pytest.mark.parametrize("argv", [[], BUDGET, GNN], ids=["digits", "budget", "gnn"])
def test_a_component_of_another_package_sees_the_facts_while_it_is_built(argv: list[str]) -> None:
    graphgym.register_node_encoder("SeesFacts", SeesFacts)
    SEEN.clear()
    parts, _ = assemble_run(DIGITS, [*argv, "dataset.node_encoder_name", "SeesFacts"])
    width = parts.config.gnn.dim_inner
    assert SEEN[-1] == (parts.info.dim_in, parts.info.dim_out, parts.info.dim_edge, width)
    assert (width != cfg.gnn.dim_inner) == (argv == BUDGET)


def test_a_train_mode_of_another_package_sees_the_facts_while_it_runs(tmp_path: Path) -> None:
    def their_mode(loggers: Any, loaders: Any, model: Any, optimizer: Any, scheduler: Any) -> None:
        del loaders, model, optimizer, scheduler
        SEEN.append((len(loggers), *facts_in_cfg()))

    graphgym.register_train("their_mode", their_mode)
    SEEN.clear()
    argv = [*SMALL, *BUDGET, "train.mode", "their_mode", "out_dir", str(tmp_path)]
    with pytest.raises(ResultsError, match="No finished run"):  # its mode writes none
        run_experiment(ROOT / DIGITS, argv)
    parts, _ = assemble_run(DIGITS, BUDGET)
    info = parts.info
    assert [(3, info.dim_in, info.dim_out, info.dim_edge, parts.config.gnn.dim_inner)] == SEEN


def test_the_config_is_as_before_after_a_component_that_could_not_be_built() -> None:
    load_config(cfg, ROOT / DIGITS, SMALL)
    groups, config = dict(cfg), with_values(cfg, {"share.dim_in": 77})

    def fail() -> None:
        with served(config):
            assert cfg.share.dim_in == 77
            cfg.share.dim_in = 5

    with pytest.raises(AttributeError, match="immutable"):
        fail()
    assert cfg.share.dim_in == 1
    assert all(cfg[name] is group for name, group in groups.items())
    assert not cfg.is_frozen()
    with served(cfg):  # GraphGym's own main: its config has the facts already
        cfg.share.dim_in = 5
    assert cfg.share.dim_in == 5
