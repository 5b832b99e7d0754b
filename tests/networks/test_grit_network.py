"""The network GritTransformer: whole recorded models, sizes of the public files, and a drop-in branch of GPS layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from graphgps_kmip.networks.create_model import create_model
from tests.attention.test_grit_recorded import rename_layer
from tests.recorded import check, load

TINY = {"num_layers": 2, "dim": 8, "num_heads": 2, "pooling": "add"}
NAMES = {
    "rrwp_abs_encoder.fc.": "encoder.node.1.node.",
    "rrwp_rel_encoder.fc.": "encoder.node.1.pair.",
    "encoder.node_encoder.": "encoder.node.0.",
    "encoder.edge_encoder.": "encoder.edge.",
    **{f"post_mp.FC_layers.{number}.": f"head.mlp.{2 * number}." for number in range(3)},
    **{f"post_mp.layer_post_mp.model.0.Layer_{number}.layer.model.": f"head.mlp.{4 * number}." for number in range(2)},
    "post_mp.layer_post_mp.model.1.model.": "head.mlp.8.",
}


def grit(in_dim: int, out_dim: int, node: str, settings: dict[str, Any], **options: Any) -> nn.Module:
    return create_model(
        "",
        in_dim,
        out_dim,
        network="GritTransformer",
        node_encoder=f"{node}+RRWP",
        settings={"gt.layer_type": "GRIT", **settings},
        **options,
    )


def rename(name: str) -> str:
    if name.startswith("layers."):
        _, number, rest = name.split(".", 2)
        return f"layers.{number}.{rename_layer(rest)}"
    for old, new in NAMES.items():
        if name.startswith(old):
            return name.replace(old, new, 1)
    return name


@pytest.mark.parametrize("name", ["graph_zinclike", "node_patternlike"])
def test_whole_models_match_the_recorded_original(name: str) -> None:
    steps = {"posenc_RRWP.ksteps": 5, "posenc_RRWP.precision": "float64", "posenc_RRWP.where": "batch"}
    if name == "graph_zinclike":
        types = {"dataset.node_encoder_num_types": 6, "dataset.edge_encoder_num_types": 3}
        encoders = {"edge_dim": 1, "edge_encoder": "TypeDictEdge"}
        model = grit(1, 1, "TypeDictNode", steps | types, head="san_graph", **encoders, **TINY)
    else:
        head = {"gnn.layers_post_mp": 3, "gnn.l2norm": True}  # as GraphGym has it
        model = grit(3, 4, "LinearNode", steps | head, head="inductive_node", **TINY)
    model = model.double()
    # a row of zeros for pairs without a value, which complete pairs do not have, and nothing trains
    record = {key: value for key, value in load(f"G_grit/model_{name}").items() if not key.endswith("padding")}

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        number = int(inputs["batch"][-1]) + 1
        label = torch.zeros(number if name == "graph_zinclike" else len(inputs["x"]))
        return {"pred": model(Batch(y=label, _num_graphs=number, **inputs))[0]}

    check(model, forward, record, rename)
