"""Parameters by component: the architectures of the k-MIP thesis (tables A.3, A.10), as their counts tell them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.attention.bigbird import BigBirdAttention
from graphgps_kmip.attention.exphormer import ExphormerAttention
from graphgps_kmip.attention.full import FullAttention
from graphgps_kmip.attention.performer import PerformerAttention
from graphgps_kmip.gym.network_building import build_network
from graphgps_kmip.gym.parameter_count import count_by_component, count_layers, parameter_table
from graphgps_kmip.model import FeatureEncoder, GNNLayer, GPSLayer, GPSModel, GraphHead
from graphgps_kmip.mpnn import GAT, GCN, GatedGCN, GATv2
from tests.gym.networks import configure


@pytest.fixture(autouse=True)
def _entered() -> Iterator[None]:
    yield
    cfg.defrost()


def settings(network: str, width: int, layers: int, dim_in: int, input_layers: int, head_layers: int) -> dict[str, Any]:
    return {
        "model.type": network,
        "dataset.node_encoder": True,
        "dataset.node_encoder_name": "LinearNode",
        "dataset.node_encoder_bn": False,
        "dataset.edge_encoder": True,
        "dataset.edge_encoder_name": "DummyEdge",
        "dataset.edge_encoder_bn": False,
        "share.dim_in": dim_in,
        "gnn.dim_inner": width,
        "gt.dim_hidden": width,
        "gnn.layers_mp": layers,
        "gt.layers": layers,
        "gnn.layers_pre_mp": input_layers,
        "gnn.layers_post_mp": head_layers,
        "gnn.head": "graph",
        "gt.n_heads": 4,
    }


STABLE = {
    "dataset.node_encoder_name": "LinearNode+EquivStableLapPE",
    "posenc_EquivStableLapPE.enable": True,
    "posenc_EquivStableLapPE.eigen.max_freqs": 8,
    "dataset.edge_encoder_name": "LinearEdge",
    "dataset.edge_dim": 1,
}
LAP = {
    "dataset.node_encoder_name": "LinearNode+LapPE",
    "posenc_LapPE.enable": True,
    "posenc_LapPE.model": "DeepSet",
    "posenc_LapPE.dim_pe": 8,
    "posenc_LapPE.layers": 2,
}
MALNET, MODELNET = (5, 1, 3), (3, 0, 2)  # columns of x, input layers, head layers
KMIP = {"gt.layer_type": "CustomGatedGCN+SparseAttention", "gt.kmip.dim_kq": 16}


def counts(text: str) -> dict[str, int]:
    return {name: int(count) for name, count in (entry.split() for entry in text.split(", "))}


# model -> settings, classes, what the printed count is made of, the printed count
PRINTED: dict[str, tuple[dict[str, Any], int, dict[str, int], dict[str, int], int]] = {
    "GCN on MalNet-Tiny": (
        settings("gnn", 160, 8, *MALNET) | {"gnn.layer_type": "gcnconv", "dataset.node_encoder_bn": True},
        5,
        counts("node_enc 960, node_bn 320, edge_enc 160, input_layer 25920, head_hidden 51520, head_out 805"),
        counts("gcn_lin 25600, bn 320"),
        287_045,
    ),
    "GAT on ModelNet10": (
        settings("gnn", 122, 5, *MODELNET) | {"gnn.layer_type": "gatconv", "gnn.batchnorm": False},
        10,
        counts("node_enc 488, edge_enc 122, head_hidden 15006, head_out 1230"),
        counts("gat_lin 15006, gat_att 244"),
        93_096,
    ),
    "GINE on CIFAR10": (
        settings("custom_gnn", 94, 5, 5, 0, 2) | STABLE | {"gnn.layer_type": "gineconv"},
        10,
        counts("node_enc 564, ESLapPE 846, edge_enc 188, head_hidden 8930, head_out 950"),
        counts("gine_mlp 17860"),
        100_778,
    ),
    "GatedGCN on Amazon-Computer": (
        settings("custom_gnn", 76, 8, 767, 1, 1) | LAP | {"gnn.layer_type": "gatedgcnconv"},
        10,
        counts("node_enc 52224, LapPE 184, edge_enc 76, input_layer 5928, head_out 770"),
        counts("gated_lin 29260, gated_bn 304"),
        295_694,
    ),
    "GPS+kMIP on Amazon-Computer": (
        settings("GPSModel", 72, 4, 767, 1, 1) | LAP | KMIP | {"gt.n_heads": 2},
        10,
        counts("node_enc 49152, LapPE 184, edge_enc 72, input_layer 5328, head_out 730"),
        counts("gated_lin 26280, gated_bn 288, kmip_qk 4672, kmip_v 5256, branch_norms 288, ffn 20952, ffn_norm 144"),
        286_986,
    ),
    "GPS+kMIP on ModelNet10": (
        settings("GPSModel", 48, 4, *MODELNET)
        | KMIP
        | {"gt.kmip.dim_kq": 5, "gt.batch_norm": False, "gt.graph_norm": True},
        10,
        counts("node_enc 192, edge_enc 48, head_hidden 2352, head_out 490"),
        counts("gated_lin 11760, gated_bn 192, kmip_qk 1960, kmip_v 2352, branch_norms 288, ffn 9360, ffn_norm 144"),
        107_306,
    ),
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_components_of_a_printed_count_are_ours(name: str) -> None:
    given, classes, once, per_layer, total = PRINTED[name]
    configure(given)
    model = build_network(cfg.model.type, cfg.share.dim_in, classes)
    assert count_by_component(model) == (once, per_layer)
    assert sum(parameter.numel() for parameter in model.parameters()) == total
    assert f"{total:,}" in parameter_table(model)


ATTENTION: dict[str, tuple[nn.Module, int, dict[str, int], dict[str, int]]] = {
    "BigBird": (BigBirdAttention(40, 4), 40, counts("bb_qkv 4800, bb_out 1640, bb_ffn 3280, bb_ln 160"), {}),
    "Performer": (PerformerAttention(20, 4), 20, {"performer": 20500}, {}),
    "Transformer": (FullAttention(68, 4), 68, {"mha": 18768}, {}),
    "Exphormer": (
        ExphormerAttention(52, 4, num_virt_node=3),
        52,
        {"exph_qkve": 10816},
        {"expander_emb": 52, "virtual_emb": 468},
    ),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_the_components_of_every_attention_are_told_apart(name: str) -> None:
    attention, dim, per_layer, once = ATTENTION[name]
    model = GPSModel(FeatureEncoder(dim, None, None), [GPSLayer(dim, GCN(dim), attention)], GraphHead(dim, 2, 1))
    around = {"gcn_lin": dim * dim + dim, "branch_norms": 4 * dim, "ffn": 4 * dim**2 + 3 * dim, "ffn_norm": 2 * dim}
    assert count_by_component(model) == (once | {"head_out": 2 * dim + 2}, per_layer | around)


def test_gates_edge_features_and_parts_of_ones_own_are_counted_too() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(nn.Linear(3, 4).weight)

    model = GPSModel(
        FeatureEncoder(4, Mine(), None, node_norm=True),
        [GPSLayer(4, [GatedGCN(4, equivstable_pe=True), GAT(4), GATv2(4)], Mine())],
        GraphHead(4, 2, 2),
    )
    once, per_layer = count_by_component(model)
    assert (once["node_enc"], once["node_bn"], once["head_hidden"]) == (12, 8, 20)
    assert (per_layer["es_gate"], per_layer["Mine"]) == (13, 12)
    assert (per_layer["gat_lin"], per_layer["gat_att"]) == (16 + 16 + 4, 12)
    assert per_layer["GATv2"] == sum(parameter.numel() for parameter in GATv2(4).parameters())
    alone = GPSModel(FeatureEncoder(4, None, None), [GNNLayer(GATv2(4))], GraphHead(4, 2, 1))
    assert list(count_by_component(alone)[1]) == ["GATv2"]
    assert sum((once | per_layer).values()) == sum(parameter.numel() for parameter in model.parameters())


def test_an_encoding_alone_is_counted_apart_from_the_map_of_the_features() -> None:
    configure(
        settings("gnn", 24, 1, 5, 0, 1) | LAP | {"gnn.layer_type": "ginconv", "dataset.node_encoder_name": "LapPE"}
    )
    once, per_layer = count_by_component(build_network("gnn", 5, 2))
    assert once == counts("node_enc 96, LapPE 184, edge_enc 24, head_out 50")
    assert per_layer == {"GINConv": 2 * (24 * 24 + 24), "bn": 48}


def test_layers_that_differ_are_counted_one_by_one() -> None:
    given = settings("gnn", 8, 3, 5, 0, 1) | {"gnn.layer_type": "gcnconv", "gnn.stage_type": "skipconcat"}
    configure(given)
    model = build_network("gnn", 5, 2)
    with pytest.raises(ValueError, match="differ"):
        count_by_component(model)
    _, layers = count_layers(model)
    assert layers == [{"gcn_lin": 64, "bn": 16}, {"gcn_lin": 128, "bn": 16}, {"gcn_lin": 192, "bn": 16}]
    table = parameter_table(model)
    assert "layers.2 " in table and "each" not in table  # noqa: PT018


def test_layers_that_are_alike_stand_once_in_the_table() -> None:
    configure(settings("custom_gnn", 8, 3, 5, 0, 1) | {"gnn.layer_type": "gcnconv"})
    table = parameter_table(build_network("custom_gnn", 5, 2)).splitlines()
    assert [line.split()[-1] for line in table if line.startswith("layers.0 to layers.2, each")] == ["72"]
    assert table[-1].split() == ["total", str(48 + 8 + 18 + 3 * 72)]
