"""GatedGCN against its equations, the recorded originals and the laws of message passing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphgps_kmip.mpnn import GatedGCN
from tests.recorded import check, load

RECORDS = {
    "A_layers/gps_gatedgcn_reson_relu_b3": {"residual": True, "edge_residual": True},
    "A_layers/gps_gatedgcn_resoff_relu_b3": {"residual": False, "edge_residual": False},
    "A_layers/kmip_gatedgcn_reson_b3": {"residual": True, "edge_residual": True},
    "A_layers/kmip_gatedgcn_resoff_b1": {"residual": False, "edge_residual": True},
}


def rename(name: str) -> str:
    return name.replace("bn_node_x.", "node_norm.module.").replace("bn_edge_e.", "edge_norm.module.")


@pytest.mark.parametrize("name", RECORDS)
def test_outputs_gradients_and_running_statistics_match_the_recorded_original(name: str) -> None:
    layer = GatedGCN(8, **RECORDS[name]).double()

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x, edge_attr = layer(inputs["x"], inputs["edge_index"], inputs["edge_attr"])
        return {"x": x, "edge_attr": edge_attr}

    check(layer, forward, load(name), rename)


def graph(num_nodes: int = 5, dim: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    edge_index = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 0, 0, 0, 2]])
    return torch.randn(num_nodes, dim).double(), edge_index, torch.randn(edge_index.size(1), dim).double()


def test_one_edge_at_a_time_gives_what_the_equations_say() -> None:
    layer, (x, edge_index, edge_attr) = GatedGCN(4, residual=False).double().eval(), graph()
    gates = {
        (int(j), int(i)): layer.C(e) + layer.D(x[i]) + layer.E(x[j])
        for (j, i), e in zip(edge_index.T, edge_attr, strict=True)
    }
    expected = layer.A(x)
    for i in range(len(x)):
        sigma = {j: torch.sigmoid(gate) for (j, target), gate in gates.items() if target == i}
        for j, s in sigma.items():
            expected[i] = expected[i] + s / (sum(sigma.values()) + 1e-6) * layer.B(x[j])
    expected = torch.relu(layer.node_norm(expected))
    torch.testing.assert_close(layer(x, edge_index, edge_attr)[0], expected, rtol=1e-10, atol=1e-10)


def test_permuting_nodes_and_edges_permutes_the_output() -> None:
    layer, (x, edge_index, edge_attr) = GatedGCN(4).double(), graph()
    nodes, edges = torch.randperm(len(x)), torch.randperm(len(edge_attr))
    place = torch.empty_like(nodes)
    place[nodes] = torch.arange(len(nodes))  # old node -> new place
    out, edge_out = layer(x, edge_index, edge_attr)
    moved, edge_moved = layer(x[nodes], place[edge_index[:, edges]], edge_attr[edges])
    torch.testing.assert_close(moved, out[nodes])
    torch.testing.assert_close(edge_moved, edge_out[edges])


@pytest.mark.parametrize(("num_nodes", "num_edges"), [(0, 0), (1, 0), (1, 1), (3, 0), (2, 1)])
def test_tiny_graphs_train_without_failing_in_the_batch_norm(num_nodes: int, num_edges: int) -> None:
    layer = GatedGCN(4)
    edge_index = torch.zeros(2, num_edges, dtype=torch.long)
    x, edge_attr = layer(torch.randn(num_nodes, 4), edge_index, torch.randn(num_edges, 4))
    assert x.shape == (num_nodes, 4)
    assert edge_attr.shape == (num_edges, 4)
    assert x.isfinite().all()
    assert edge_attr.isfinite().all()


def test_missing_edge_features_are_named_with_the_mend() -> None:
    with pytest.raises(ValueError, match="DummyEdge"):
        GatedGCN(4)(torch.randn(2, 4), torch.zeros(2, 1, dtype=torch.long), None)


def test_gradcheck_in_float64() -> None:
    layer, (x, edge_index, edge_attr) = GatedGCN(4, act=torch.nn.Softplus).double().eval(), graph()
    inputs = (x.requires_grad_(), edge_attr.requires_grad_())
    assert torch.autograd.gradcheck(lambda x, e: layer(x, edge_index, e), inputs)
