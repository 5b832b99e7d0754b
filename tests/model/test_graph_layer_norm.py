"""Layer norm over whole graphs: torch_geometric's numbers, gradients, and laws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import LayerNorm

from graphgps_kmip.model.norms import GraphLayerNorm

BATCH = torch.tensor([0] * 5 + [1] + [3] * 7)  # graph 2 has no node, graph 1 a single one


def pair(dtype: torch.dtype = torch.float64) -> tuple[GraphLayerNorm, LayerNorm, Tensor]:
    norm, reference = GraphLayerNorm(6).to(dtype), LayerNorm(6, mode="graph").to(dtype)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    reference.load_state_dict(norm.state_dict())
    return norm, reference, (3 + 2 * torch.randn(len(BATCH), 6)).to(dtype)


def test_values_and_gradients_are_torch_geometrics() -> None:
    norm, reference, x = pair()
    cotangent, results = torch.randn_like(x), []
    for layer in (norm, reference):
        leaf = x.clone().requires_grad_()
        out = layer(leaf, BATCH, 4)
        (out * cotangent).sum().backward()
        results.append([out, leaf.grad, layer.weight.grad, layer.bias.grad])
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("nodes", [0, 1])
def test_no_nodes_and_a_single_one_are_finite(nodes: int) -> None:
    x = torch.randn(nodes, 6, requires_grad=True)
    out = GraphLayerNorm(6)(x, torch.zeros(nodes, dtype=torch.long), 1)
    out.sum().backward()
    assert out.shape == (nodes, 6)
    assert torch.isfinite(x.grad).all()


def test_halves_are_normalised_in_float32() -> None:
    norm, _, x = pair(torch.float32)
    expected = norm(x, BATCH, 4)
    out = norm.bfloat16()(x.bfloat16(), BATCH, 4)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=3e-2, atol=3e-2)
