"""The fused C loops of GINE's messages against the plain form: values, gradients, threads, and what they refuse."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor

from graphgps_kmip.mpnn import GINE, gin
from graphgps_kmip.mpnn.relu_messages import relu_messages
from graphgps_kmip.native import unavailable_reason, without_kernels
from tests.native.vector_units import VECTOR_UNITS
from tests.pairwise import pairwise

pytestmark = pytest.mark.skipif(unavailable_reason("relu_messages") is not None, reason="no C compiler")

SOURCES, TARGETS, EDGES = 7, 5, 23
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def example(dim: int, num_edges: int = EDGES, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], list[Tensor]]:
    """Node 4 is no target, node 6 no source; source and target sets differ in size."""
    shapes = (TARGETS, dim), (SOURCES, dim), (num_edges, dim)
    floats = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    return floats, [torch.randint(0, nodes - 1, (num_edges,)) for nodes in (SOURCES, TARGETS)]


def plain(x: Tensor, x_source: Tensor, edge: Tensor, source: Tensor, target: Tensor) -> Tensor:
    return x.index_add(0, target, torch.relu(x_source[source] + edge))


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("instruction_set", VECTOR_UNITS, indirect=True)
@pytest.mark.parametrize(
    ("dim", "num_edges", "dtype"), pairwise([1, 3, 16, 21], [EDGES, 1, 0], [torch.float64, torch.float32])
)
def test_values_and_gradients_equal_the_plain_form(dim: int, num_edges: int, dtype: torch.dtype) -> None:
    floats, indices = example(dim, num_edges, dtype)
    found, expected = (form(*floats, *indices) for form in (relu_messages, plain))
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    cotangent = torch.randn_like(found)
    grads = [torch.autograd.grad(out, floats, cotangent) for out in (found, expected)]
    torch.testing.assert_close(*grads, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("joint", [False, True])
def test_first_and_second_derivatives_equal_finite_differences(joint: bool) -> None:
    """Of one set of nodes, and of sources and targets; rows and indices that are not contiguous."""
    floats, (source, target) = example(3)
    floats[2] = torch.randn(3, EDGES, dtype=torch.float64, requires_grad=True)
    indices = torch.stack([source % TARGETS if joint else source, target], 1).T

    def run(x: Tensor, x_source: Tensor, edge: Tensor) -> Tensor:
        return relu_messages(x, None if joint else x_source, edge.T, *indices).square()

    given = tuple(floats)
    assert torch.autograd.gradcheck(run, given)
    assert torch.autograd.gradgradcheck(run, given)
    inputs = [floats[0], floats[2], *([] if joint else [floats[1]])]
    once, again = (torch.autograd.grad(run(*given).sum(), inputs, create_graph=graph) for graph in (False, True))
    torch.testing.assert_close(once, again, **EXACT)


def test_the_order_of_edges_does_not_matter() -> None:
    (x, x_source, edge), (source, target) = example(4)
    order = torch.randperm(EDGES)
    found = relu_messages(x, x_source, edge[order], source[order], target[order])
    torch.testing.assert_close(found, relu_messages(x, x_source, edge, source, target), **EXACT)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x, edge = (torch.randn(rows, 70, requires_grad=True) for rows in (500, 6000))
    indices, results, before = torch.randint(0, 500, (2, 6000)), [], torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        out = relu_messages(x, None, edge, *indices)
        results.append((out, *torch.autograd.grad(out.square().sum(), (x, edge))))
    torch.set_num_threads(before)
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_nan_stays_visible_in_value_and_gradient() -> None:
    (x, x_source, edge), (source, target) = example(4)
    edge.data[0, 1] = torch.nan
    out = relu_messages(x, x_source, edge, source, target)
    assert out[target[0], 1].isnan()
    assert torch.autograd.grad(out.sum(), edge)[0][0, 1] == 1  # as torch's ReLU


@pytest.mark.parametrize("wrong", [-1, SOURCES])
def test_an_edge_of_a_node_that_is_not_there_is_an_error(wrong: int) -> None:
    for side in range(2):
        floats, indices = example(3)
        indices[side][4] = wrong
        with pytest.raises(IndexError, match="nodes that do not exist"):
            relu_messages(*floats, *indices)


@pytest.mark.parametrize("pair", [False, True])
def test_the_layer_takes_the_kernel_and_equals_plain_torch(pair: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, calls, results = GINE(4).double(), [], []
    monkeypatch.setattr(gin, "relu_messages", lambda *given: calls.append(1) or relu_messages(*given))
    (x, x_source, edge), (source, target) = example(4)
    nodes, edge_index = ((x_source, x), torch.stack([source, target])) if pair else (x, torch.stack([target, target]))
    for context in (contextlib.nullcontext, without_kernels):
        with context():
            out, _ = layer(nodes, edge_index, edge)
            inputs = (x, edge, *layer.parameters(), *([x_source] if pair else []))
            results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    assert calls == [1]
    torch.testing.assert_close(*results, **EXACT)


def test_halves_and_a_gate_take_the_form_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(gin, "relu_messages")
    edge_index = torch.randint(0, 5, (2, 9))
    out, _ = GINE(4).bfloat16()(torch.randn(5, 4).bfloat16(), edge_index, torch.randn(9, 4).bfloat16())
    assert out.dtype == torch.bfloat16
    GINE(4, equivstable_pe=True)(torch.randn(5, 4), edge_index, torch.randn(9, 4), torch.randn(5, 3))
