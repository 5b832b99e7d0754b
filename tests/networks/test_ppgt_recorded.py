"""Whole PPGT models equal the recorded ones: outputs, states, all gradients and running statistics, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from graphgps_kmip import create_model
from tests.networks.ppgt_names import recorded_parameters, renaming
from tests.recorded import check, load, part

TINY = {
    "posenc_RRWP.ksteps": 4,
    "posenc_RRWP.channels": "K+1",
    "posenc_RRWP.precision": "float64",
    "posenc_RRWP.where": "batch",
    "ppgt.stem_hidden": [16],
    "gnn.act": "gelu",
    "gnn.head": "linear_graph",
    "dataset.edge_encoder": False,
}
TYPES = {"dataset.node_encoder_name": "TypeDictNode", "dataset.node_encoder_num_types": 6}
BONDS = {
    "dataset.edge_encoder": True,
    "dataset.edge_encoder_name": "TypeDictEdge",
    "dataset.edge_encoder_num_types": 3,
}
BREC = {
    **TYPES,
    "dataset.node_encoder_num_types": 1,
    "model.graph_pooling": "add",
    "ppgt.num_bases": 15,
    "gnn.layers_post_mp": 3,
    "head.linear_graph.out_bn": True,
    "head.linear_graph.out_dim": 16,
}
# Record -> columns of x, outputs, columns of edge_attr, and what differs from `TINY` and the defaults.
RECORDS: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "model_graph_zinclike": (1, 1, 1, {**TYPES, **BONDS, "model.graph_pooling": "add", "gnn.layers_post_mp": 3}),
    "model_graph_funclike": (
        1,
        5,
        1,
        {**TYPES, **BONDS, "gnn.layers_post_mp": 3, "head.linear_graph.post_pooling_norm": "batch_norm"},
    ),
    "model_graph_cifarlike": (
        5,
        10,
        1,
        {
            "dataset.edge_encoder": True,
            "dataset.edge_encoder_name": "LinearEdge",
            "gnn.layers_post_mp": 2,
            "ppgt.node_features": "rrwp+location+log_degree",
            "ppgt.pair_features": "location+inverse_order+inverse_degree",
        },
    ),
    "model_node_patternlike": (
        3,
        4,
        0,
        {
            "dataset.edge_encoder": True,
            "dataset.edge_encoder_name": "DummyEdge",
            "gnn.layers_post_mp": 2,
            "gnn.head": "linear_node",
        },
    ),
    "model_graph_pcqmlike": (
        1,
        1,
        1,
        {
            **TYPES,
            **BONDS,
            "gnn.layers_post_mp": 3,
            "posenc_RRWP.sym_norm": True,
            "ppgt.node_features": "rrwp+log_order",
            "ppgt.pair_features": "inverse_order",
            "ppgt.num_bases": 5,
            "ppgt.dim_pair": 6,
            "ppgt.ffn_ratio": 4,
            "ppgt.stem_ffn_ratio": 4,
            "ppgt.stem_first_norm": "ada_rms_norm",
            "ppgt.first_norm": "ada_rms_norm",
            "ppgt.layer_scale": 0.1,
        },
    ),
    "model_class_arxivlike": (
        6,
        4,
        0,
        {
            "posenc_RRWP.dual_direction": True,
            "model.graph_pooling": "cls_token",
            "ppgt.node_features": "rrwp+target+class_token",
            "ppgt.class_token": "order",
            "ppgt.pair_features": "inverse_order",
            "ppgt.dim_pair": 6,
            "ppgt.layer_scale": 0.1,
            "ppgt.class_layers": 2,
        },
    ),
    "model_brec": (1, 1, 0, BREC),
    "model_brec_i2gin": (
        1,
        1,
        0,
        {**BREC, "ppgt.subgraph_encoder": "I2GIN", "ppgt.subgraph_layers": 2, "ppgt.subgraph_hops": 2},
    ),
}


def model_of(name: str) -> nn.Module:
    dim_in, dim_out, edge_dim, settings = RECORDS[name]
    return create_model(
        "",
        dim_in,
        dim_out,
        network="PPGT",
        num_layers=2,
        dim=8,
        num_heads=2,
        edge_dim=edge_dim,
        settings=TINY | settings,
    ).double()


@pytest.mark.parametrize("name", RECORDS)
def test_outputs_states_and_gradients_equal_the_recorded_model(name: str) -> None:
    record, model = load(f"F_model/{name}"), model_of(name)
    state = part(record, "state")
    features = RECORDS[name][3].get("ppgt.node_features", "rrwp+log_degree+log_order")
    rename = renaming(features, has_subgraphs="ppgt.subgraph_encoder" in RECORDS[name][3])
    kept = recorded_parameters({key: value.shape for key, value in state.items()})
    assert {rename(key) for key in kept} == set(model.state_dict())
    dropped = [f"/{key}" for key in set(state) - set(kept)]
    record = {key: value for key, value in record.items() if not key.endswith(tuple(dropped))}
    seen: dict[str, Tensor] = {}
    model.head.norm.register_forward_hook(lambda module, args, out: seen.update(x=out))  # noqa: ARG005
    model.layers[0].register_forward_pre_hook(lambda module, args: seen.update(pe=args[1].pair_attr))  # noqa: ARG005

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        pred = model(batch_of(inputs))[0]
        mode = "train" if model.training and "train/out/pred" in record else "eval"
        torch.testing.assert_close(seen["x"], record[f"{mode}/extra/x_final"], rtol=1e-9, atol=1e-9)
        for graph, (size, pairs) in enumerate(zip(*padded(seen["pe"], inputs["ptr"]), strict=True)):
            expected = record[f"{mode}/extra/pe"][graph, :size, :size]
            torch.testing.assert_close(pairs, expected, rtol=1e-9, atol=1e-9)
        return {"pred": pred}

    check(model, forward, record, rename)


def batch_of(inputs: dict[str, Tensor]) -> Batch:
    batch = Batch(**inputs, y=torch.zeros(1))
    batch._num_graphs = len(inputs["ptr"]) - 1
    return batch


def padded(pairs: Tensor, ptr: Tensor) -> tuple[list[int], list[Tensor]]:
    sizes = ptr.diff().tolist()
    parts = pairs.split([size**2 for size in sizes])
    return sizes, [part.unflatten(0, (size, size)) for size, part in zip(sizes, parts, strict=True)]
