"""Sums over in-neighbours: against a dense matrix, in both forms, and their gradients."""

from __future__ import annotations

import pytest
import torch

from graphgps_kmip.ops import propagation
from graphgps_kmip.ops.propagation import ADJACENCIES, WeightedEdges, adjacency_weights, propagate, propagate_heads


@pytest.mark.parametrize("kind", ADJACENCIES)
def test_propagation_equals_a_dense_matrix_and_its_gradient_the_transposed_one(kind: str) -> None:
    torch.manual_seed(0)
    edge_index = torch.randint(7, (2, 30))
    weight = adjacency_weights(edge_index, 7, kind, torch.float64)
    dense = torch.zeros(7, 7, dtype=torch.float64)
    for (source, target), factor in zip(edge_index.T.tolist(), weight, strict=True):
        dense[target, source] += factor
    if kind == "mean":
        torch.testing.assert_close(dense.sum(1), torch.ones(7, dtype=torch.float64))
    x, edges = torch.randn(7, 3, dtype=torch.float64, requires_grad=True), WeightedEdges(edge_index, 7, weight)
    torch.testing.assert_close(propagate(x, edges), dense @ x)
    assert torch.autograd.gradcheck(lambda x: propagate(x, edges), (x,))
    assert torch.autograd.gradgradcheck(lambda x: propagate(x, edges), (x,))


@pytest.mark.parametrize("most", [1, 2**25])
@pytest.mark.parametrize("edges", [0, 1, 40])
def test_sums_of_lists_and_of_chunks_are_the_same(edges: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(propagation, "CHUNK_NUMBERS", most)
    torch.manual_seed(0)
    edge_index, weight = torch.randint(9, (2, edges)), torch.randn(edges, dtype=torch.float64)
    edge_index[1].clamp_(max=6)  # two nodes have no edge
    x = torch.randn(9, 3, dtype=torch.float64)
    for weights in (weight, None):
        factors = torch.ones(edges, dtype=torch.float64) if weights is None else weights
        dense = torch.zeros(9, 9, dtype=torch.float64).index_put(tuple(edge_index.flip(0)), factors, accumulate=True)
        for sums in (propagation.sum_lists, propagation.sum_chunks):
            torch.testing.assert_close(
                sums(x, WeightedEdges(edge_index, 9, weights)), dense @ x, atol=1e-12, rtol=1e-12
            )


def _attention(edges: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    edge_index = torch.randint(7, (2, edges))
    edge_index[1].clamp_(max=5)  # node 6 has no edge
    return torch.randn(7, 2, 3, dtype=dtype), torch.rand(edges, 2, dtype=dtype), edge_index


@pytest.mark.parametrize("some", [1, 2**17])
@pytest.mark.parametrize("edges", [0, 1, 40])
def test_heads_are_summed_with_their_weights(edges: int, some: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(propagation, "CACHED_NUMBERS", some)
    x, weight, edge_index = _attention(edges)
    x.requires_grad_()
    weight.requires_grad_()
    out = propagate_heads(x, weight, WeightedEdges(edge_index, 7))
    expected = torch.zeros_like(x)
    for (source, target), factor in zip(edge_index.T.tolist(), weight, strict=True):
        expected = expected.index_add(0, torch.tensor([target]), (factor[:, None] * x[source])[None])
    torch.testing.assert_close(out, expected)
    cotangent = torch.randn_like(x)
    for grad, expected_grad in zip(
        *(
            torch.autograd.grad(y, [x, weight], cotangent, allow_unused=True, retain_graph=True)
            for y in (out, expected + 0 * x + 0 * weight.sum())
        ),
        strict=True,
    ):
        torch.testing.assert_close(grad, expected_grad)


def test_second_derivatives_of_heads() -> None:
    x, weight, edge_index = _attention(9)
    inputs, edges = (x.requires_grad_(), weight.requires_grad_()), WeightedEdges(edge_index, 7)
    assert torch.autograd.gradgradcheck(lambda x, weight: propagate_heads(x, weight, edges), inputs)


def test_half_precision_is_summed_in_single_precision() -> None:
    edge_index = torch.stack([torch.arange(300), torch.zeros(300).long()])
    x = torch.ones(300, 1, 1, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.ones(300, 1, requires_grad=True)
    edges = WeightedEdges(edge_index, 300)
    assert propagate(x[:, 0].detach(), edges)[0] == 300  # sums in bfloat16 would stop at 256
    out = propagate_heads(x, weight, edges)
    assert out.dtype == torch.bfloat16
    assert out[0] == 300
    out.sum().backward()
    assert (x.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.float32)
