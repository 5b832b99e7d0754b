"""Settings reach networks: variants of k-MIP attention, parts of GRIT, heads that fit the labels of the data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import AnnealedKeys, BestKeys, DiverseKeys, KMIPAttention, RandomKeys
from graphgps_kmip.attention.kmip import build_kmip
from graphgps_kmip.compat.public_faults import FirstKeyAgain, PaddedKMIPAttention, repeat_faults
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.networks.create_model import create_model
from graphgps_kmip.networks.head_builders import check_head
from graphgps_kmip.signatures import options

# The config group gt.kmip: hashes of finished runs count its keys and values.
DEFAULTS = {
    "k": 10,
    "dim_kq": None,
    "dim_val": None,
    "head_agg": "none",
    "search": "auto",
    "k_start": 0,
    "anneal_until": 0.5,
    "diversity": 0.0,
    "random_attention": False,
    "random_fraction": 0.1,
}
VARIANTS: list[tuple[dict[str, Any], type[KMIPAttention], list[type]]] = [
    ({}, KMIPAttention, [BestKeys]),
    ({"k_start": 20}, KMIPAttention, [AnnealedKeys, BestKeys]),
    ({"diversity": 0.1, "random_attention": True}, KMIPAttention, [DiverseKeys, RandomKeys]),
    ({"repeat_first_key": True, "diversity": 0.1}, KMIPAttention, [FirstKeyAgain, DiverseKeys, BestKeys]),
    ({"pad_keys": True, "k_start": 20}, PaddedKMIPAttention, [AnnealedKeys, BestKeys]),
]


def build(settings: dict[str, Any]) -> KMIPAttention:
    options = {name: value for name, value in settings.items() if name in DEFAULTS}
    return repeat_faults(build_kmip(8, 2, **options), {f"gt.kmip.{name}": value for name, value in settings.items()})


def test_the_config_group_has_the_keys_and_defaults_that_finished_runs_were_hashed_with() -> None:
    assert {name: option.default for name, option in options(build_kmip).items()} == DEFAULTS


@pytest.mark.parametrize(("settings", "variant", "selections"), VARIANTS)
def test_each_setting_has_its_variant(
    settings: dict[str, Any], variant: type[KMIPAttention], selections: list[type]
) -> None:
    attention = build(settings)
    assert type(attention) is variant
    assert [type(module) for module in attention.selection.modules()] == selections


def grit(in_dim: int, out_dim: int, node: str, settings: dict[str, Any], **options: Any) -> nn.Module:
    options |= {"node_encoder": f"{node}+RRWP", "settings": settings}
    return create_model("GRIT", in_dim, out_dim, network="GritTransformer", **options)


def batch_of(sizes: list[int], edges_per_node: int = 2) -> Batch:
    graphs = []
    for size in sizes:
        source = torch.arange(size).repeat_interleave(edges_per_node)
        target = torch.randint(size, (len(source),))
        edges = torch.cat([torch.stack([source, target]), torch.stack([target, source])], 1)
        attr = torch.randn(edges.size(1), 2, dtype=torch.float64)
        x = torch.randn(size, 3, dtype=torch.float64)
        graphs.append(Data(x=x, edge_index=edges, edge_attr=attr, y=torch.zeros(1)))
    return Batch.from_data_list(graphs)


IN_BATCH = {"posenc_RRWP.where": "batch", "posenc_RRWP.ksteps": 4, "posenc_RRWP.precision": "float64"}
SMALL = {"num_layers": 2, "dim": 8, "num_heads": 2, "head": "inductive_node", "edge_encoder": "LinearEdge"}
SMALL |= {"edge_dim": 2, "node_encoder": "LinearNode+RRWP"}


def test_the_second_layer_of_a_branch_reads_the_pairs_that_the_first_one_made() -> None:
    model = create_model("GatedGCN+GRIT", 3, 4, settings=IN_BATCH, **SMALL).double().train()
    model(batch_of([5, 4]))[0].pow(3).sum().backward()
    first, last = (layer.attention[0].pairs.linear.weight.grad for layer in model.layers)
    assert first.abs().max() > 1e-10
    assert last is None or not last.any()  # nothing reads those of the last one


def test_settings_reach_the_layers() -> None:
    settings = {
        **{"grit.bn_momentum": 0.3, "grit.bn_no_runner": True, "grit.rezero": True},
        **{"gt.grit.clamp": 2.0, "gt.dropout": 0.2, "gt.attn_dropout": 0.4},
    }
    model = grit(3, 4, "LinearNode", settings, **SMALL)
    layer, last = model.layers
    attention, [norm] = layer.attention[0], layer.attention_norm
    assert (norm.momentum, norm.running_mean) == (0.3, None)
    assert (attention.pairs.norm[0].momentum, attention.pairs.norm[0].running_mean) == (0.3, None)
    assert attention.clamp == 2.0
    assert (attention.dropout, attention.out_dropout.p, attention.pairs.dropout) == (0.4, 0.2, 0.2)
    assert layer.ffn_alpha.shape == attention.pairs.alpha.shape == (1, 1)
    assert (attention.pairs.update, last.attention[0].pairs.update) == (True, False)


class Node(dict):
    __getattr__ = dict.__getitem__


def settings(head: str) -> Node:
    data = Node(format="PyG-Planetoid", name="Cora", task_type="classification")
    return Node(gnn=Node(head=head), dataset=data)


@pytest.mark.parametrize(
    ("head", "level", "line"),
    [
        (head, "node", " PyG-Planetoid Cora, .* set gnn.head node")
        for head in ("inductive_node", "graph", "linear_graph")
    ]
    + [(head, "inductive_node", ".*; the public codes stop at .* inductive_node") for head in ("graph", "san_graph")],
)
def test_a_head_that_the_labels_do_not_fit_is_refused(head: str, level: str, line: str) -> None:
    with pytest.raises(ConfigError, match=f"gnn.head: {head} does not fit{line}"):
        check_head(settings(head), level)


@pytest.mark.parametrize(
    ("head", "level"),
    [("node", "node"), ("linear_node", "node"), ("inductive_node", "sampled"), ("inductive_node", "inductive_node")],
)
def test_heads_that_fit_pass(head: str, level: str) -> None:
    check_head(settings(head), level)
