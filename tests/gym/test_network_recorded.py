"""custom_gnn and GraphGym's own network against the recorded originals: outputs, gradients, running statistics."""

from __future__ import annotations

import re
from typing import Any

import pytest
from torch import Tensor
from torch_geometric.data import Batch

from graphgps_kmip.gym.network_building import build_network
from graphgps_kmip.ops.context import GraphContext
from tests.gym.networks import configure
from tests.mpnn.test_recorded import rename
from tests.recorded import check, load

PLAIN = {
    "dataset.node_encoder": False,
    "dataset.edge_encoder": False,
    "dataset.edge_dim": 8,
    "gnn.dim_inner": 8,
    "gnn.dropout": 0.0,
    "gnn.layers_post_mp": 1,
    "gnn.head": "inductive_node",
    "model.graph_pooling": "mean",
    "share.dim_in": 8,
}


# What differs from a layer of gcnconv with ReLU after it and no residual.
GAT, GINE = {"gnn.layer_type": "gatconv"}, {"gnn.layer_type": "gineconv"}
GATED = {"gnn.layer_type": "gatedgcnconv"}
RESIDUAL, GELU = {"gnn.residual": True}, {"gnn.act": "gelu"}
LRGB_GINE = GINE | RESIDUAL | {"gnn.gine_inner": "mlp_dropout"}
CUSTOM: dict[str, dict[str, Any]] = {
    "gps_customgnn_gine_resoff_b3": GINE,
    "gps_customgnn_gine_reson_b1": GINE | RESIDUAL,
    # the k-MIP code and Exphormer have a ReLU in GINE and GatedGCN, whatever gnn.act says
    "gps_customgnn_gine_reson_b1 gelu": GINE | RESIDUAL | GELU | {"gnn.layer_act": "relu"},
    "kmip_customgnn_GATConvLayer_resoff_relu_b3": GAT,
    "kmip_customgnn_GATConvLayer_reson_gelu_b3": GAT | RESIDUAL | GELU | {"gnn.layer_act": "relu"},
    "kmip_customgnn_GATConvLayer_reson_relu_b3": GAT | RESIDUAL,
    "kmip_customgnn_GCNConvLayer_reson_gelu_b3": RESIDUAL | GELU,
    "kmip_customgnn_GCNConvLayer_reson_relu_b3": RESIDUAL,
    "lrgb_customgnn_GCNConvLayer_resoff_relu_b3": {},
    "lrgb_customgnn_GCNConvLayer_reson_gelu_b3": RESIDUAL | GELU,
    "lrgb_customgnn_GCNConvLayer_reson_relu_b3": RESIDUAL,
    "lrgb_customgnn_GINEConvLayer_reson_gelu_b3": LRGB_GINE | GELU,
    "lrgb_customgnn_GINEConvLayer_reson_relu_b3": LRGB_GINE,
    "lrgb_customgnn_GatedGCNLayer_resoff_relu_b3": GATED | {"gnn.edge_residual": True},
    "lrgb_customgnn_GatedGCNLayer_reson_gelu_b3": GATED | RESIDUAL | GELU,
    # as the layers of custom_gnn, but recorded under another name
    "gps_gatedgcn_resoff_relu_b3": GATED,
    "gps_gatedgcn_reson_gelu_b3": GATED | RESIDUAL | GELU,
    "kmip_gatedgcn_resoff_b3": GATED | {"gnn.edge_residual": True},
    "kmip_gatedgcn_reson_b3": GATED | RESIDUAL | GELU | {"gnn.layer_act": "relu"},
}


@pytest.mark.parametrize("name", CUSTOM)
def test_a_layer_of_custom_gnn_is_that_of_the_public_code(name: str) -> None:
    defaults = {"gnn.layer_type": "gcnconv", "gnn.layers_mp": 1, "gnn.act": "relu"}
    configure(PLAIN | defaults | CUSTOM[name])
    layer, record = build_network("custom_gnn", 8, 3).layers[0].double(), load(f"A_layers/{name.split()[0]}")
    record = {key: value for key, value in record.items() if not key.endswith("eps") or bool(value)}  # ours has none

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        batch = Batch(**{"batch": inputs["edge_index"].new_zeros(len(inputs["x"])), **inputs})
        x, edge_attr, _ = layer(inputs["x"], GraphContext.from_data(batch))
        return {"x": x, "edge_attr": edge_attr}

    check(layer, forward, record, lambda key: f"conv.{rename(type(layer.conv), key).removeprefix('model.')}")


STOCK: dict[str, dict[str, Any]] = {
    "gatconv_skipconcat_relu_bn_node": GAT | {"gnn.stage_type": "skipconcat"},
    "gatconv_skipsum_relu_bn_node": GAT | {"gnn.stage_type": "skipsum"},
    "gatconv_stack_relu_bn_node": GAT,
    "gatedgcnconv_stack_relu_bn_node": GATED,
    "gcnconv_skipsum_relu_bn_node": {"gnn.stage_type": "skipsum"},
    "gcnconv_stack_gelu_nobn_node": {"gnn.act": "gelu", "gnn.batchnorm": False},
    "gcnconv_stack_relu_bn_graph": {"gnn.head": "graph"},
    "gcnconv_stack_relu_bn_l2_node": {"gnn.l2norm": True},
    "gcnconv_stack_relu_bn_node": {},
    "generalconv_stack_relu_bn_node": {"gnn.layer_type": "generalconv"},
    "generaledgeconv_stack_relu_bn_node": {"gnn.layer_type": "generaledgeconv"},
    "ginconv_stack_relu_bn_node": {"gnn.layer_type": "ginconv"},
    "linear_stack_relu_bn_node": {"gnn.layer_type": "linear"},
    "sageconv_stack_relu_bn_node": {"gnn.layer_type": "sageconv"},
}
NAMES = [
    (r"pre_mp\.Layer_0\.layer\.model\.", "pre_mp.0."),
    (r"pre_mp\.Layer_0\.post_layer\.0\.", "pre_mp.1.module."),
    (r"mp\.layer(\d)\.layer\.model\.bn_(node|edge)_[xe]\.", r"layers.\1.layer.layer.conv.\2_norm.module."),
    (r"mp\.layer(\d)\.layer\.model\.([A-E])\.", r"layers.\1.layer.layer.conv.\2."),
    (r"mp\.layer(\d)\.layer\.", r"layers.\1.layer.layer."),
    (r"mp\.layer(\d)\.post_layer\.0\.", r"layers.\1.layer.post_layer.0.module."),
    (r"post_mp\.layer_post_mp\.model\.0\.model\.", "head.mlp.0."),
]


def stock_name(key: str) -> str:
    return next(re.sub(f"^{old}", new, key) for old, new in NAMES if re.match(old, key))


@pytest.mark.parametrize("name", STOCK)
def test_graphgyms_own_network_is_that_of_torch_geometric(name: str) -> None:
    defaults = {"gnn.layer_type": "gcnconv", "gnn.layers_pre_mp": 1, "gnn.layers_mp": 2, "gnn.l2norm": False}
    configure(PLAIN | defaults | {"model.type": "gnn"} | STOCK[name])
    network, record = build_network("gnn", 8, 3).double(), load(f"A_layers/core_gnn_{name}_b3")

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        sizes = inputs["batch"].bincount()
        batch = Batch(**inputs, y=None, ptr=sizes.new_zeros(1).new_tensor([0, *sizes.cumsum(0).tolist()]))
        batch._num_graphs = len(sizes)
        return {"pred": network(batch)[0]}

    check(network, forward, record, stock_name)
