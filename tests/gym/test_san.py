"""SAN from a config: which layers a file gets, their parameters module by module, and steps of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.network_building import build_network
from graphgps_kmip.registry import components
from tests.gym.networks import DATA, configure
from tests.gym.public_files import EDGE_TYPES, ZINC, silent_after_two_steps

SAN = DATA | {
    "model.type": "SANTransformer",
    "gt.layer_type": "SANLayer",
    "gt.layers": 2,
    "gnn.head": "san_graph",
    "gnn.layers_pre_mp": 0,
}
# GraphGPS's zinc-SAN.yaml: most public files rely on the default of gt.layer_type in their code.
PUBLIC = ZINC | {
    "dataset": ZINC["dataset"] | EDGE_TYPES,
    "model": ZINC["model"] | {"type": "SANTransformer"},
    "gt": ZINC["gt"] | {"layers": 3},
}


def test_the_keys_of_the_config_reach_the_layers() -> None:
    options = {"gt.gamma": 0.25, "gt.dropout": 0.2, "gt.layer_norm": True, "gt.batch_norm": False}
    configure(SAN | options | {"model.graph_pooling": "max"})
    network = build_network("SANTransformer", 5, 3)
    assert network.head.pool is components("pooling")["max"]
    layer = network.layers[1]
    (attention,) = layer.attention
    assert (attention.gamma, attention.dropout.p, attention.secondary_edges) == (0.25, 0.2, "full_graph")
    assert [module.p for module in layer.ffn if isinstance(module, nn.Dropout)] == [0.2]
    assert [type(norm) for norm in layer.attention_norm] == [nn.LayerNorm]


@pytest.mark.parametrize(
    ("settings", "pairs"),
    [
        ({}, "full_graph"),
        ({"gt.full_graph": False}, "none"),
        ({"gt.secondary_edges": "none"}, "none"),
        ({"gt.secondary_edges": "expander_edges"}, "expander"),
        ({"gt.secondary_edges": "expander_edge_index"}, "expander"),
    ],
)
def test_both_public_keys_say_which_pairs_join_the_edges(settings: dict[str, Any], pairs: str) -> None:
    configure(SAN | settings)
    assert build_network("SANTransformer", 5, 3).layers[0].attention[0].secondary_edges == pairs


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gt.layer_type": "SAN3Layer"}, "gt.layer_type: unknown name 'SAN3Layer'. Did you mean .*SAN2Layer"),
        ({"gt.dim_hidden": 16}, r"gt.dim_hidden \(16\) and gnn.dim_inner \(8\) must be equal"),
        ({"gt.layers": 0}, "gt.layers: expected 1 or more"),
        ({"gt.graph_norm": True}, "gt.graph_norm: .* set it False"),
    ],
)
def test_what_cannot_be_built_is_refused_by_key(settings: dict[str, Any], message: str) -> None:
    configure(SAN | settings)
    with pytest.raises(ConfigError, match=message):
        build_network("SANTransformer", 5, 3)


def test_a_public_file_takes_two_steps_unchanged(tmp_path: Path) -> None:
    assert silent_after_two_steps(tmp_path, PUBLIC) == []
