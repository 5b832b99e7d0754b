"""Sizes of networks: the width search, the largest within a budget, and parameter counts by component."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.model_builder import create_model
from yacs.config import CfgNode

from graphgps_kmip.gym.network_building import NARROWEST, WIDEST, build_network, count_parameters, with_width
from graphgps_kmip.gym.parameter_count import count_layers, parameter_table
from graphgps_kmip.model import FeatureEncoder, GPSLayer, GPSModel, GraphHead
from graphgps_kmip.mpnn import GAT, GatedGCN, GATv2
from tests.gym.networks import DATA, configure

GPS = {"model.type": "GPSModel", "gt.layers": 2, "gt.n_heads": 4, "gt.kmip.dim_kq": 5, "gt.kmip.head_agg": "Linear"}
CASES: dict[str, dict[str, Any]] = {
    "GPSModel": GPS | {"model.param_budget": 60_000},
    "MultiModel": GPS | {"model.type": "MultiModel", "gt.layer_type": "GINE+GCN+kMIP", "model.param_budget": 60_000},
    "custom_gnn": {"model.type": "custom_gnn", "gnn.layer_type": "gatconv", "model.param_budget": 41_000},
    "custom_gnn with heads": {"model.type": "custom_gnn", "gnn.layer_type": "GAT", "model.param_budget": 41_000},
    "gnn": {"model.type": "gnn", "gnn.layer_type": "gatconv", "model.param_budget": 41_000},
}
BUDGETED = DATA | {
    "model.auto_satisfy_param_budget": True,
    "dataset.task_type": "classification",
    "share.dim_out": 3,
    "gnn.dim_inner": 33,
    "gt.dim_hidden": 35,
    "gnn.layers_mp": 3,
    "gnn.layers_post_mp": 1,
}


def widths(config: CfgNode) -> tuple[int, int, int | None]:
    return config.gnn.dim_inner, config.gt.dim_hidden, config.gt.kmip.dim_val


def real_count(width: int) -> int:
    cfg.gnn.dim_inner = width
    if cfg.model.type in ("GPSModel", "MultiModel"):
        cfg.gt.dim_hidden, cfg.gt.kmip.dim_val = width, width // cfg.gt.n_heads
    return count(build_network(cfg.model.type, cfg.share.dim_in, cfg.share.dim_out))


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", CASES)
def test_the_width_is_the_largest_within_the_budget(name: str) -> None:
    configure(BUDGETED | CASES[name])
    heads = 1 if cfg.model.type == "gnn" or cfg.gnn.layer_type == "gatconv" and "custom" in name else cfg.gt.n_heads
    width, hidden, dim_val = widths(with_width(cfg))
    assert widths(cfg) == (33, 35, None), "the search changed the config"
    assert NARROWEST < width < WIDEST
    assert width % heads == 0
    if "GPS" in name or "Multi" in name:
        assert (hidden, dim_val, cfg.gt.kmip.dim_kq) == (width, width // 4, 5)
    else:
        assert (hidden, dim_val) == (35, None)
    budget, of_graphgym = cfg.model.param_budget, count(create_model(to_device=False))
    assert of_graphgym == real_count(width), "GraphGym's own main program builds another width"
    assert real_count(width) <= budget < real_count(width + heads)


def test_every_width_is_found_by_the_budget_that_it_just_fills() -> None:
    configure(BUDGETED | CASES["gnn"] | {"gnn.layers_mp": 1})
    for width in (32, 33, 272, 511, 512):
        cfg.model.param_budget = real_count(width)
        assert with_width(cfg).gnn.dim_inner == width


def test_the_width_stays_between_its_bounds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    configure(BUDGETED | CASES["custom_gnn"] | {"model.param_budget": 10})
    assert with_width(cfg).gnn.dim_inner == NARROWEST
    assert "below the narrowest network: it has 3," in caplog.text
    caplog.clear()
    configure(BUDGETED | CASES["custom_gnn"] | {"model.param_budget": 10**9})
    result = with_width(cfg)
    assert result.gnn.dim_inner == WIDEST
    [line] = [record.getMessage() for record in caplog.records if "width" in record.getMessage()]
    assert line == f"model.param_budget 1,000,000,000: width 512, {count_parameters(result):,} parameters"


def test_the_search_draws_no_random_number_and_keeps_no_weights() -> None:
    configure(BUDGETED | CASES["GPSModel"])
    before = torch.get_rng_state()
    with_width(cfg)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.empty(1).device.type == "cpu"


def test_a_network_without_k_mip_keeps_the_keys_of_k_mip() -> None:
    configure(BUDGETED | CASES["GPSModel"] | {"gt.layer_type": "GatedGCN+Transformer"})
    result = with_width(cfg)
    assert result.gt.kmip.dim_val is None
    assert result.gt.dim_hidden == result.gnn.dim_inner != cfg.gnn.dim_inner


def built(name: str, settings: dict[str, Any]) -> nn.Module:
    configure(DATA | {"model.type": name, "dataset.edge_encoder": False} | settings)
    return build_network(name, 5, 2)


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
    assert (counts["attention Mine"], counts["local GATv2"]) == (12, count(GATv2(4)))
    assert sum((once | counts).values()) == count(model)


def test_layers_that_differ_are_counted_one_by_one() -> None:
    model = built("gnn", {"gnn.layers_mp": 3, "gnn.stage_type": "skipconcat"})
    _, layers = count_layers(model)
    assert [sum(layer.values()) for layer in layers] == [64 + 16, 128 + 16, 192 + 16]
    table = parameter_table(model)
    assert "layers.2 " in table and "each" not in table  # noqa: PT018


def test_layers_that_are_alike_are_in_the_table_once() -> None:
    model = built("custom_gnn", {"gnn.layers_mp": 3})
    table = parameter_table(model).splitlines()
    (line,) = (line for line in table if line.startswith("layers.0 to layers.2, each"))
    assert line.split()[-2] == "72"
    assert table[-1].split()[:2] == ["total", str(count(model))]
