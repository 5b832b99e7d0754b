"""Polynormer and SGFormer equal their recorded public code on one graph, whose self loop and loose node are no matter.

The records are of the code of cornell-zhang/Polynormer (model.py) and of qitianwu/SGFormer (large/ours.py) as its paper
has it, with the edges that their main.py makes: of both directions, and one self loop of each node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphgps_kmip import create_model
from tests.recorded import check, load

NAMES = [  # of the public code -> ours, in order
    (r"^lin_in\.", "encoder.node.encoder."),
    (r"^global_attn\.lin_out\.", "head.attention.0.out."),  # of all global layers
    (r"^global_attn\.betas\.(\d)", r"head.attention.\1.gate.weight"),
    (r"^global_attn\.([hqkv])_lins\.(\d)\.", lambda found: f"head.attention.{found[2]}.{MAPS[found[1]]}."),
    (r"^global_attn\.lns\.(\d)\.", r"head.attention.\1.norm."),
    (r"^betas\.(\d)", r"layers.\1.gate.weight"),
    (r"^h_lins\.(\d)\.", r"layers.\1.factor."),
    (r"^lins\.(\d)\.", r"layers.\1.linear."),
    (r"^lns\.(\d)\.", r"layers.\1.norm."),
    (r"^local_convs\.(\d)\.", r"layers.\1.conv.conv."),
    (r"^ln\.", "head.norm."),
    (r"^pred_(local|global)\.", r"head.\1_head.mlp.0."),
    (r"^trans_conv\.", "layers.0.attention_branch."),
    (r"^graph_conv\.", "layers.0.convolution_branch."),
    (r"fcs\.0\.", "input."),
    (r"convs\.(\d)\.W([qkv])\.", lambda found: f"attention.{found[1]}.{MAPS[found[2]]}."),
    (r"convs\.(\d)\.W\.weight", r"convs.\1.conv.lin.weight"),
    (r"convs\.(\d)\.W\.bias", r"convs.\1.conv.bias"),
    (r"(attention_branch)\.bns\.", r"\1.norm."),
    (r"bns\.(\d)\.", r"norm.\1.module."),
    (r"^fc\.", "head.mlp.0."),
]
MAPS = {"h": "factor", "q": "query", "k": "key", "v": "value"}
POLYNORMER = {"network": "Polynormer", "num_layers": 2, "num_heads": 2, "global_layers": 2, "in_dropout": 0.0}
SGFORMER = {"network": "SGFormer", "num_layers": 2, "num_heads": 1, "settings": {"dataset.node_encoder": False}}
RECORDS: dict[str, dict[str, Any]] = {
    "polynormer_local": POLYNORMER,
    "polynormer_global": POLYNORMER,
    "polynormer_global_constant_beta": {
        **POLYNORMER,
        "settings": {"gt.polynormer.beta": 0.1, "gt.polynormer.qk_shared": False},
    },
    "sgformer_add": SGFORMER,
    "sgformer_cat": {**SGFORMER, "num_layers": 3, "num_heads": 2, "attention_layers": 2, "aggregate": "cat"},
    "sgformer_plain_values": {
        **SGFORMER,
        "num_layers": 1,
        "graph_weight": 0.5,
        "settings": {"dataset.node_encoder": False, "gt.sgformer.use_weight": False},
    },
}


def renamed(name: str) -> str:
    for pattern, ours in NAMES:
        name = re.sub(pattern, ours, name)
    return name


def prepared(name: str) -> dict[str, Tensor]:
    """Return a record whose betas are one array for each layer, with what our states have beside those of the code."""
    record: dict[str, Tensor] = {}
    for key, value in load(f"J_linear_transformers/{name}").items():
        rows = enumerate(value) if key.endswith("betas") else ()
        record |= {f"{key}.{layer}": row for layer, row in rows} or {key: value}
    if name.startswith("polynormer"):
        record["state/head.is_global"] = torch.tensor("global" in name)
        for part in ("weight", "bias"):  # a state has a map that two layers share twice
            record[f"state/head.attention.1.out.{part}"] = record[f"state/global_attn.lin_out.{part}"]
    return record


def predicted(model: torch.nn.Module, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    data = Data(x=given["x"], edge_index=given["edge_index"], y=torch.zeros(len(given["x"])))
    return {"pred": model(Batch.from_data_list([data]))[0]}


@pytest.mark.parametrize("name", RECORDS)
def test_outputs_and_gradients_equal_the_recorded_ones(name: str) -> None:
    model = create_model("", 5, 3, dim=8, head="inductive_node", **RECORDS[name]).double()
    check(model, lambda given: predicted(model, given), prepared(name), renamed)
