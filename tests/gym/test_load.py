"""Loading a config: what is accepted, and the one line for each thing that can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_hash import config_hash
from graphgps_kmip.gym.config_loading import load_config

BODY = "dataset:\n  task: graph\n  transductive: False\ngnn:\n  layers_post_mp: 1\n"


def load(tmp_path: Path, text: str = "", *overrides: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(BODY + text)
    load_config(cfg, file, list(overrides))


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    load(tmp_path, "gt:\n  layers: 7\n  n_heads: 2\n", "gt.layers", "9")
    assert (cfg.gt.layers, cfg.gt.n_heads, cfg.gt.dropout) == (9, 2, 0.0)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("gt.dropout", "0", 0.0),  # yacs refuses an int for a float
        ("optim.base_lr", "1e-3", 1e-3),  # YAML 1.1 reads this as a string
        ("wandb.use", "true", True),
        ("name_tag", "12", "12"),
        ("name_tag", "", ""),
        ("gt.kmip.dim_kq", "5", 5),
        ("gt.kmip.dim_kq", "null", None),
        ("run_multiple_splits", "[0, 1]", [0, 1]),
        ("gt.kmip.k", "3", 3),
    ],
)
def test_values_take_the_type_of_their_key(tmp_path: Path, key: str, text: str, value: object) -> None:
    load(tmp_path, "", key, text)
    *groups, leaf = key.split(".")
    node = cfg
    for name in groups:
        node = node[name]
    assert node[leaf] == value
    assert type(node[leaf]) is type(value)


def test_keys_of_the_public_kmip_code_are_read_as_ours(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    load(tmp_path, "gt:\n  sparse:\n    k: 4\n    kq_dim: none\n    head_agg: None\n")
    assert (cfg.gt.kmip.k, cfg.gt.kmip.dim_kq, cfg.gt.kmip.head_agg) == (4, None, "none")
    assert caplog.text.count("gt.sparse.k is read as gt.kmip.k") == 1


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("gt:\n  kmip:\n    kk: 3\n", (), r"run\.yaml: unknown key 'gt\.kmip\.kk'\. Did you mean .*gt\.kmip\.k"),
        ("optim:\n  max_epochs: 3\n", (), r"Did you mean optim\.max_epoch"),
        ("gt:\n  base_lr: 0.1\n", (), r"Did you mean optim\.base_lr"),
        ("optim:\n  max_epoch: many\n", (), r"optim\.max_epoch: expected int, got 'many'"),
        ("wandb:\n  use: 1\n", (), r"wandb\.use: expected bool, got 1"),
        ("gt: 3\n", (), r"gt is a group of keys"),
        ("", ("gt.layers",), "pairs"),
        ("", ("gt.layers", "[1"), "cannot be read"),
        ("", ("nonsense", "1"), "the command line: unknown key"),
        ("custom_modules: [nowhere]\n", (), "no file or module 'nowhere'"),
        ("base: nowhere.yaml\n", (), "no such config file"),
        ("base: run.yaml\n", (), "cannot be its own base"),
        ("gt:\n  kmip:\n    dim_kq: 2001-01-01\n", (), r"run\.yaml: gt\.kmip\.dim_kq"),
        ("custom_modules: [null]\n", (), "custom_modules"),
    ],
)
def test_mistakes_get_one_clear_line(tmp_path: Path, text: str, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(tmp_path, text, *overrides)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_key_that_is_there_twice_is_named_with_its_line_and_the_later_one_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, "gt:\n  layers: 1\n  layers: 2\n")
    (warning,) = [record.message for record in caplog.records if "twice" in record.message]
    assert "run.yaml:8: 'layers' is there twice" in warning
    assert cfg.gt.layers == 2


def test_a_base_file_comes_first_and_is_relative_to_its_reader(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "base.yaml").write_text(BODY + "gt:\n  layers: 5\n  n_heads: 2\n")
    file = tmp_path / "run.yaml"
    file.write_text("base: shared/base.yaml\ngt:\n  layers: 6\n")
    load_config(cfg, file, [])
    assert (cfg.gt.layers, cfg.gt.n_heads) == (6, 2)


def test_a_custom_module_brings_its_attention_and_its_config_group(tmp_path: Path) -> None:
    (tmp_path / "toy_attention.py").write_text(
        "from torch import nn\n"
        "from graphgps_kmip.gym import register_attention\n"
        "class Toy(nn.Module):\n"
        "    '''Toy.'''\n"
        "    def __init__(self, dim, num_heads, dropout=0.0, *, strength: float = 0.5):\n"
        "        super().__init__()\n"
        "register_attention('Toy', Toy)\n"
    )
    load(tmp_path, "custom_modules: [toy_attention.py]\ngt:\n  toy:\n    strength: 2\n")
    assert cfg.gt.toy.strength == 2.0
    first = config_hash(cfg)
    with (tmp_path / "toy_attention.py").open("a") as file:
        file.write("# changed\n")
    assert config_hash(cfg) != first, "a run of changed code would count as finished"


def test_keys_that_nothing_reads_are_accepted_and_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    load(tmp_path, "gnn:\n  heads: 4\n  use_vn: False\n", "gt.JK", "True")
    unread_records = [record for record in caplog.records if "no part of this package" in record.message]
    warnings, quiet = ([r.message for r in unread_records if r.levelname == level] for level in ("WARNING", "INFO"))
    assert [line.split("reads ")[1] for line in warnings] == ["gnn.use_vn False, gt.JK True"]
    assert [line.split("reads ")[1] for line in quiet] == ["gnn.heads 4"]


def test_keys_of_components_that_are_no_longer_registered_do_not_stay() -> None:
    load_config(cfg, None, [])
    cfg.head["gone"] = type(cfg)({"width": 3})
    cfg["posenc_Gone"] = type(cfg)({"enable": False})
    load_config(cfg, None, [])
    assert "gone" not in cfg.head
    assert "posenc_Gone" not in cfg
