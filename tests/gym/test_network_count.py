"""Parameter counts by component: names from the built modules, layers alike or not, the table of a dry run."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.gym.network_building import build_network
from graphgps_kmip.gym.parameter_count import count_layers, parameter_table
from graphgps_kmip.model import FeatureEncoder, GPSLayer, GPSModel, GraphHead
from graphgps_kmip.mpnn import GAT, GatedGCN, GATv2
from tests.gym.networks import DATA, configure


def built(name: str, settings: dict[str, Any]) -> nn.Module:
    configure(DATA | {"model.type": name, "dataset.edge_encoder": False} | settings)
    return build_network(name, 5, 2)


def total(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_components_have_the_names_of_their_modules_and_each_parameter_counts_once() -> None:
    settings = {"gt.layer_type": "GatedGCN+GINE+kMIP", "dataset.edge_encoder": True, "gt.kmip.dim_kq": 3}
    model = built("GPSModel", settings)
    once, layers = count_layers(model)
    assert once == {"encoder.node": 48, "encoder.edge": 24, "head.mlp": 90}
    assert layers[0].keys() >= {"local GatedGCN", "local GINE", "attention KMIPAttention", "local_norm", "ffn_norm"}
    assert layers[0] == layers[1]
    assert layers[0]["attention KMIPAttention"] == 2 * (2 * 3 * 8 + 2 * 3) + 8 * 8 + 8
    assert sum(once.values()) + sum(sum(layer.values()) for layer in layers) == total(model)


def test_what_the_first_layer_has_for_all_layers_is_counted_once() -> None:
    model = built("GPSModel", {"gt.layer_type": "GCN+Exphormer", "prep.exp": True, "prep.num_virt_node": 3})
    once, layers = count_layers(model)
    assert once["initial_state"] == 8 + 3 * 3 * 8
    assert layers[0] == layers[1]


def test_parts_of_ones_own_are_counted_too() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(nn.Linear(3, 4).weight)

    layer = GPSLayer(4, [GatedGCN(4, equivstable_pe=True), GAT(4), GATv2(4)], Mine())
    model = GPSModel(FeatureEncoder(4, Mine(), None, node_norm=True), [layer], GraphHead(4, 2, 2))
    once, (counts,) = count_layers(model)
    assert (once["encoder.node"], once["encoder.node_norm"]) == (12, 8)
    assert (counts["attention Mine"], counts["local GATv2"]) == (12, total(GATv2(4)))
    assert sum((once | counts).values()) == total(model)


def test_an_encoding_beside_the_features_is_counted_apart() -> None:
    settings = {"dataset.node_encoder_name": "LinearNode+LapPE", "posenc_LapPE.enable": True}
    settings |= {"posenc_LapPE.model": "DeepSet", "posenc_LapPE.dim_pe": 4, "posenc_LapPE.layers": 2}
    once, _ = count_layers(built("custom_gnn", settings))
    assert (once["encoder.node LinearNodeEncoder"], once["encoder.node LapPEEncoder"]) == (24, 60)


def test_layers_that_differ_are_counted_one_by_one() -> None:
    model = built("gnn", {"gnn.layers_mp": 3, "gnn.stage_type": "skipconcat"})
    _, layers = count_layers(model)
    assert [sum(layer.values()) for layer in layers] == [64 + 16, 128 + 16, 192 + 16]
    table = parameter_table(model)
    assert "layers.2 " in table and "each" not in table  # noqa: PT018


def test_layers_that_are_alike_stand_once_in_the_table() -> None:
    model = built("custom_gnn", {"gnn.layers_mp": 3})
    table = parameter_table(model).splitlines()
    assert [line.split()[-1] for line in table if line.startswith("layers.0 to layers.2, each")] == ["72"]
    assert table[-1].split() == ["total", str(total(model))]
    assert cfg.gnn.layers_mp == 3
