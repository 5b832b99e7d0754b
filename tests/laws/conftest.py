"""The laws run over every row of the table of attentions, and over the options that change what is computed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import graphgps_kmip.networks  # noqa: F401 (registers k-MIP)
from graphgps_kmip.attention import SANAttention
from graphgps_kmip.registry import AttentionTraits, Spec, entries

# name, options, and what the row does not promise with them
OPTIONS: list[tuple[str, dict[str, Any], dict[str, tuple[str, ...]]]] = [
    ("kMIP", {"k": 4, "diversity": 2.0}, {}),
    ("kMIP", {"k": 2, "dim_kq": 3, "dim_val": 5, "head_agg": "Linear"}, {}),
    ("BigBird", {"form": "edges"}, {}),
    # a single layer: nothing reads the new features of virtual nodes
    ("Exphormer", {"num_virt_node": 2}, {"zero_grad": ("initial_state.to_virtual.weight",)}),
    ("Exphormer", {"use_exp_edges": False}, {"zero_grad": ("initial_state.expander.weight",)}),
    ("Exphormer", {"add_edge_index": False}, {}),
    ("ScoreEstimator", {"elementwise": True, "normalise_values": False}, {}),
    ("SAN", {"gamma": 0.3}, {}),
    ("SAN", {"secondary_edges": "none"}, {"zero_grad": ("initial_state.feature.weight",)}),
    ("SAN", {"secondary_edges": "expander", "gamma": 0.3}, {"breaks": ("batch_vector",)}),
    ("SAN", {"separate": True}, {}),
    ("SAN", {"separate": True, "secondary_edges": "none"}, {"breaks": ("gradients",)}),
    ("SAN", {"separate": True, "secondary_edges": "expander"}, {"breaks": ("batch_vector",)}),
    ("GRIT", {"edge_enhance": False}, {}),
    ("sL2", {"scale": "paper", "key_norm": "none", "gated": True}, {}),
    ("sL2", {"key_norm": "learned", "qk_norm": "layer_norm", "urpe": False}, {"zero_grad": ("pair.bias",)}),
    ("GECO", {"form": "gate_first", "local": "convolution"}, {}),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "attention_row" not in metafunc.fixturenames:
        return
    rows = list(entries("attention").values())
    table = entries("attention") | {"SAN": Spec("attention", "SAN", SANAttention, "", traits=AttentionTraits())}
    for name, options, less in OPTIONS:
        row, said = table[name], ", ".join(f"{key}={value}" for key, value in options.items())
        traits = replace(row.traits, **less)
        rows.append(replace(row, name=f"{name}({said})", component=partial(row.component, **options), traits=traits))
    metafunc.parametrize("attention_row", rows, ids=[row.name for row in rows])
