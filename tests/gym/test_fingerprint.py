"""The config hash: it covers what a run reads, whatever else this process has imported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_geometric.graphgym import register
from torch_geometric.graphgym.config import cfg
from yacs.config import CfgNode

from graphgps_kmip.attention import FullAttention
from graphgps_kmip.gym.config_hash import config_hash
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.registry import register_attention
from tests.processes import forked

ROOT = Path(__file__).parents[2]
DIGITS = "configs/quickstart/digits-kmip.yaml"
OWN = "examples/my_attention/digits-linear.yaml"
# What the code before computed in a process of its own: runs that it finished stay finished.
EARLIER = {DIGITS: "b7e1da06b7d2", "configs/quickstart/digits-gcn.yaml": "3a392337b772"}


@pytest.fixture(autouse=True)
def registries_as_before(own_registry: None) -> Iterator[None]:  # noqa: ARG001
    functions = dict(register.config_dict)
    yield
    register.config_dict.clear()
    register.config_dict.update(functions)
    cfg.defrost()
    cfg.pop("theirs", None)
    load_config(cfg, ROOT / DIGITS, [])


def hash_of(file: str, *words: str) -> str:
    load_config(cfg, ROOT / file, list(words))
    return config_hash(cfg)


class Peculiar(FullAttention):
    """An attention of a user's with an option."""

    def __init__(self, dim: int, num_heads: int, dropout: float = 0.0, *, strength: float = 1.0) -> None:
        super().__init__(dim, num_heads, dropout)
        self.strength = strength


def test_an_own_attention_that_a_run_does_not_name_changes_nothing_and_one_that_it_names_does() -> None:
    before = hash_of(DIGITS)
    register_attention("Peculiar", Peculiar)
    assert hash_of(DIGITS) == before
    assert hash_of(DIGITS, "gt.layers", "7") != before
    used = hash_of(DIGITS, "gt.layer_type", "GatedGCN+Peculiar")
    stronger = hash_of(DIGITS, "gt.layer_type", "GatedGCN+Peculiar", "gt.peculiar.strength", "2.0")
    assert len({before, used, stronger}) == 3
    assert hash_of(DIGITS, "gt.peculiar.strength", "2.0") != before  # set on purpose: somebody may read it


def test_an_encoding_that_came_later_counts_where_a_config_names_it_or_sets_its_options() -> None:
    before = hash_of(DIGITS)
    named = hash_of(DIGITS, "dataset.node_encoder_name", "LinearNode+RRWP")
    longer = hash_of(DIGITS, "dataset.node_encoder_name", "LinearNode+RRWP", "posenc_RRWP.ksteps", "7")
    assert len({before, named, longer, hash_of(DIGITS, "posenc_RRWP.ksteps", "7")}) == 4


@pytest.mark.parametrize(
    ("key", "other"),
    [("ffn", "False"), ("order", "local_first"), ("edge_dropout", "0.1"), ("attention_layer_scale", "0.1")]
    + [("local_residual_map", "linear"), ("dropout_place", "output")],
)
def test_a_recipe_counts_where_it_is_not_that_of_graphgps(key: str, other: str) -> None:
    default = {"ffn": "True", "order": "parallel", "edge_dropout": "0.0", "attention_layer_scale": "0.0"}
    default = (default | {"local_residual_map": "identity", "dropout_place": "branches"})[key]
    assert hash_of(DIGITS, f"recipe.{key}", default) == hash_of(DIGITS) != hash_of(DIGITS, f"recipe.{key}", other)


def test_an_outer_residual_of_gatedgcn_counts_where_there_is_one() -> None:
    outer = ("gt.gatedgcn.outer_residual", "True")
    for branches, counts in (("GCN+kMIP", False), ("GatedGCN+kMIP", True), ("kMIP+CustomGatedGCN", True)):
        words = ("gt.layer_type", branches, "gt.gatedgcn.residual", "False")
        assert (hash_of(DIGITS, *words, *outer) != hash_of(DIGITS, *words)) == counts
        assert hash_of(DIGITS, *words, outer[0], "False") == hash_of(DIGITS, *words)


def test_config_functions_of_other_packages_change_nothing_unless_their_keys_are_set() -> None:
    before = hash_of(DIGITS)

    def declare(node: CfgNode) -> None:
        node.theirs = CfgNode({"width": 3})

    register.register_config("theirs", declare)
    assert hash_of(DIGITS) == before
    assert hash_of(DIGITS, "theirs.width", "4") != before


IMPORTS = "from pathlib import Path; from graphgps_kmip.gym.planned_runs import planned_hash\n"


def printed(*orders: list[str]) -> list[dict[str, str]]:
    """Return for each order file -> hash, as a new process computes them one after the other."""
    code = IMPORTS + "for file in {}: print(file, planned_hash(['--cfg', file], Path()))"
    ended = forked(IMPORTS, [code.format(files) for files in orders])
    assert [done.returncode for done in ended] == [0] * len(orders), [done.stderr for done in ended]
    return [dict(line.split() for line in done.stdout.splitlines()) for done in ended]


def test_hashes_are_those_of_earlier_code_and_the_same_in_any_order_of_loading() -> None:
    # OWN first: as main.py trains it, and the manifest's process must expect the same
    first, last = printed([OWN, *EARLIER], [*EARLIER, OWN])
    assert first == last == EARLIER | {OWN: first[OWN]}


# Settings (model.type, gt.layer_type, more words) of which the earlier code computed something else, and those near
# them of which it computed the same; with the hash that it gave them.
MULTI = ("model.type", "MultiModel", "gt.layer_type")
SAN = ("gnn.head", "san_graph", "gnn.act")
RRWP = ("dataset.node_encoder_name", "LinearNode+RRWP")
NORM = ("dataset.node_encoder_bn", "True")
CHANGED = {
    (*MULTI, "CustomGatedGCN+GINE"): "a752d65d2749",
    (*MULTI, "GatedGCN+GCN+GatedGCN+kMIP"): "2a653d9d042d",
    (*MULTI, "GatedGCN+GAT"): "5f7f6d66fa3f",
    (*SAN, "gelu"): "1955c56d024e",
    (*SAN, "relu", "gnn.layer_act", "gelu"): "5267ded3da4b",
    (*RRWP, *NORM): "f65ea7c86c62",
    ("train.precision", "64-true"): "9b470a8d2507",
}
UNCHANGED = {
    (*MULTI, "GatedGCN+kMIP"): "c8811e40aef2",
    (*MULTI, "GINE+GatedGCN"): "83b80c7b719e",
    (*MULTI, "GatedGCN+GCN"): "2ef3c981cf18",
    (*MULTI, "GatedGCN+GAT", "gt.gat.use_edge_attr", "False"): "3540f1c8fc85",
    (*MULTI, "GatedGCN+GINE__exp+Exphormer"): "e27fb7a363e2",
    ("gt.layer_type", "GatedGCN+GINE"): "ebda596489bb",
    (*SAN, "relu"): "2d820f7d1dc5",
    (*SAN, "gelu", "gnn.layer_act", "relu"): "dc8c059e55b5",
    ("gnn.act", "gelu"): "1b62213edf8c",
    RRWP: "e8387e90d044",
    NORM: "41cfd2f566f6",
}


@pytest.mark.parametrize("words", CHANGED, ids=" ".join)
def test_settings_that_now_compute_something_else_have_another_hash_than_their_earlier_runs(
    words: tuple[str, ...],
) -> None:
    assert hash_of(DIGITS, *words) != CHANGED[words]


@pytest.mark.parametrize("words", UNCHANGED, ids=" ".join)
def test_settings_near_them_keep_the_hash_of_their_earlier_runs(words: tuple[str, ...]) -> None:
    assert hash_of(DIGITS, *words) == UNCHANGED[words]
