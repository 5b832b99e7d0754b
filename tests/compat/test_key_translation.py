"""Every key and value of the public YAML files is accepted; keys that nothing reads, and what is refused."""

from __future__ import annotations

import ast
import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch import nn
from torch_geometric.graphgym.config import cfg
from yacs.config import CfgNode

import graphgps_kmip.compat
import graphgps_kmip.gym
from graphgps_kmip.compat.key_translation import KEYS, SPEXPHORMER, UNREAD, UNREAD_ELSEWHERE, VALUES, refuse, translate
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_defaults import set_defaults
from graphgps_kmip.gym.config_loading import flatten, load_config
from graphgps_kmip.registry import register

# key -> value as text -> letters of the codes whose files have it
PUBLIC: dict[str, dict[str, str]] = yaml.safe_load((Path(__file__).parent / "public_values.yaml").read_text())
CODES = {"G": "graphgps", "E": "exphormer", "S": "spexphormer"}
READ = {bool: {"True": True, "False": False}.get, int: int, float: float, str: str, list: json.loads, type(None): int}
BY_GRAPHGYM = {("gnn.head", "default"): "node"}  # resolved when it checks the config
ROOMS = [Path(graphgps_kmip.__file__).parent / name for name in ("gym", "networks", "compat")]
HEAD = "dataset: {task: node}\ngnn: {layers_post_mp: 1}\n"


def block(tree: dict[str, Any], indent: str = "") -> str:
    """Return a tree of groups, keys and values as text."""
    lines = []
    for key, value in tree.items():
        lines += (
            [f"{indent}{key}:", block(value, f"{indent}  ")] if isinstance(value, dict) else [f"{indent}{key}: {value}"]
        )
    return "\n".join(lines)


def load(tmp_path: Path, *lines: str) -> dict[str, Any]:
    """Return all settings after loading a file of ours whose lines are ``dotted.key: value``, beside a minimal head."""
    (tmp_path / "head.yaml").write_text(f"dialect: ''\n{HEAD}")
    tree: dict[str, Any] = {"base": "head.yaml"}
    for key, _, text in (line.partition(": ") for line in lines):
        *groups, leaf = key.split(".")
        functools.reduce(lambda node, group: node.setdefault(group, {}), groups, tree)[leaf] = text
    (tmp_path / "run.yaml").write_text(block(tree))
    load_config(cfg, tmp_path / "run.yaml", [])
    return dict(flatten(cfg))


def test_the_list_of_public_values_is_whole() -> None:
    assert len(PUBLIC) == 150
    assert sum(map(len, PUBLIC.values())) == 566


@pytest.fixture(scope="module")
def defaults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return load(tmp_path_factory.mktemp("defaults"))


TRANSLATED = {*SPEXPHORMER.keys, *SPEXPHORMER.together[2:]}  # by their dialect
CHECKED = {key: list(values) for key, values in PUBLIC.items() if key not in TRANSLATED}


def test_every_public_value_is_accepted(defaults: dict[str, Any], tmp_path: Path) -> None:
    for number in range(max(map(len, CHECKED.values()))):
        texts = {key: values[number] for key, values in CHECKED.items() if len(values) > number}
        settings = load(tmp_path, *(f"{key}: {text}" for key, text in texts.items()))
        for key, text in texts.items():
            value, default = (content[KEYS.get(key, key)] for content in (settings, defaults))
            assert value == BY_GRAPHGYM.get((key, text), READ[type(default)](text)), key
            assert default is None or type(value) is type(default), key


@pytest.mark.parametrize("key", sorted(PUBLIC.keys() & SPEXPHORMER.keys.keys()))
def test_every_public_value_of_a_key_of_the_low_width_method_means_what_it_says(key: str, tmp_path: Path) -> None:
    for text in PUBLIC[key]:
        value = load(tmp_path, "dialect: spexphormer", f"{key}: {text}")[SPEXPHORMER.keys[key]]
        assert value == READ[type(value)](text)


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("gt.sparse.k: 4", "gt.kmip.k", 4),
        ("gt.sparse.kq_dim: none", "gt.kmip.dim_kq", None),
        ("gt.sparse.val_dim: null", "gt.kmip.dim_val", None),
        ("gt.sparse.head_agg: null", "gt.kmip.head_agg", "none"),
        ("gt.sparse.head_agg: Linear", "gt.kmip.head_agg", "Linear"),
        ("gt.sparse.random_attention: True", "gt.kmip.random_attention", True),
        ("gt.sparse.random_fraction: 1", "gt.kmip.random_fraction", 1.0),
        ("gt.bigbird.attention_type: original_full", "gt.bigbird.form", "original_full"),
        ("device: cuda:0", "accelerator", "cuda:0"),
        ("gt.dim_edge: none", "gt.dim_edge", None),
        ("gt.dim_edge: 16", "gt.dim_edge", 16),
        ("posenc_GraphormerBias.num_spatial_types: none", "posenc_GraphormerBias.num_spatial_types", None),
        ("gt.layer_type: 'ASE '", "gt.layer_type", "ASE"),
        ("optim.weight_decay: 1e-3", "optim.weight_decay", 1e-3),
        ("train.mode: custom_train", "train.mode", "custom_train"),
    ],
)
def test_other_names_and_forms_are_read_as_ours(line: str, key: str, value: object, tmp_path: Path) -> None:
    assert load(tmp_path, line)[key] == value


def test_what_is_translated_to_and_from_exists_once(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert {*KEYS.values(), *VALUES} <= set(settings)
    assert not set(KEYS) & set(settings), "a key of ours would be read as another"
    assert translate("gt.layers", 3) == ("gt.layers", 3)


def test_keys_that_nothing_reads_have_defaults_in_whatever_group(tmp_path: Path) -> None:
    first, again = load(tmp_path, "gt.vn_pooling: max", "prep.exp_count: 3"), load(tmp_path)
    assert (first["gt.vn_pooling"], first["prep.exp_count"]) == ("max", 3)
    assert {key: again[key] for key in UNREAD} == UNREAD, "a setting of the file before has stayed"
    assert set(again) >= UNREAD_ELSEWHERE
    assert "gt.bigbird.block_size" in again


@pytest.mark.usefixtures("own_registry")
def test_a_component_may_have_the_name_of_a_key_that_nothing_reads() -> None:
    class Activation(nn.Module):
        def __init__(self, *, strength: float = 0.5) -> None:
            super().__init__()
            self.strength = strength

    register("attention", "Activation", Activation)
    node = CfgNode()
    set_defaults(node)
    assert node.gt.activation.strength == 0.5


def test_no_part_reads_the_keys_that_are_said_to_be_unread() -> None:
    files = [file for folder in ROOMS for file in folder.rglob("*.py")]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    named = (ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute))
    reads = {re.sub(r"^(cfg|(plan\.)?settings)\.", "", name) for name in named}
    assert {"gt.layers", "posenc_EquivStableLapPE.enable", "seed"} <= reads, "the search finds nothing"
    assert not reads & {*UNREAD, *UNREAD_ELSEWHERE}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("model.type: GPSwLPEModel", "no public code has it: take GPSModel"),
        ("dataset.node_encoder_name: ZINCNode+LapPE", r"ZINCNode\+LapPE.*TypeDictNode"),
        ("dataset.edge_encoder_name: ZINCEdge", "ZINCEdge.*TypeDictEdge"),
    ],
)
def test_what_cannot_run_loads_and_is_refused_with_a_reason(line: str, why: str, tmp_path: Path) -> None:
    settings = load(tmp_path, line)
    with pytest.raises(ConfigError, match=why):
        refuse(settings)
