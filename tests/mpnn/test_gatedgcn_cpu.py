"""The fused C loops of GatedGCN against the plain form: values, gradients, threads, and what they refuse."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import Tensor

from graphgps_kmip.mpnn import GatedGCN, gatedgcn
from graphgps_kmip.mpnn.gated_mean import gated_mean
from graphgps_kmip.native import unavailable_reason, without_kernels
from tests.mpnn.cases import check_gradients
from tests.native.vector_units import VECTOR_UNITS
from tests.pairwise import pairwise

pytestmark = pytest.mark.skipif(unavailable_reason("gated_sum") is not None, reason="no C compiler")

SOURCES, TARGETS, EDGES = 7, 5, 23


def example(dim: int, with_factor: bool, num_edges: int = EDGES, dtype: torch.dtype = torch.float64) -> tuple:
    """Node 4 is no target, node 6 no source; source and target sets differ in size."""
    shapes = [(TARGETS, 2 * dim), (SOURCES, 2 * dim), (num_edges, dim), (num_edges, 1)]
    floats = [(2 * torch.randn(shape, dtype=dtype)).requires_grad_() for shape in shapes]
    if not with_factor:
        floats[3] = None
    indices = [torch.randint(0, nodes - 1, (num_edges,)) for nodes in (SOURCES, TARGETS)]
    return floats, indices


def plain(own: Tensor, other: Tensor, edge: Tensor, factor: Tensor | None, source: Tensor, target: Tensor) -> tuple:
    (a, d), (b, h) = own.chunk(2, 1), other.chunk(2, 1)
    gate = edge + d[target] + h[source]
    weight = gate.sigmoid() * (1 if factor is None else factor)
    total, normaliser = (torch.zeros_like(a).index_add(0, target, part) for part in (weight * b[source], weight))
    return a + total / (normaliser + 1e-6), gate


def run(floats: list[Tensor | None], indices: list[Tensor]) -> tuple[Tensor, Tensor]:
    own, other, edge, factor = floats
    return gated_mean(own, other, edge, factor, *indices)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("instruction_set", VECTOR_UNITS, indirect=True)
@pytest.mark.parametrize(
    ("dim", "num_edges", "with_factor", "dtype"),
    pairwise([1, 3, 16, 21], [EDGES, 1, 0], [False, True], [torch.float64, torch.float32]),
)
def test_values_and_gradients_equal_the_plain_form(
    dim: int, num_edges: int, with_factor: bool, dtype: torch.dtype
) -> None:
    floats, indices = example(dim, with_factor, num_edges, dtype)
    if with_factor:
        floats[3].data.abs_()  # as those of the distance gate: with other signs a sum may come near 0
    found, expected = run(floats, indices), plain(*floats, *indices)
    tolerance = 1e-11 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    check_gradients(found, expected, floats, tolerance)  # the edges of a last layer go nowhere


@pytest.mark.parametrize("with_factor", [False, True])
def test_gradients_equal_finite_differences(with_factor: bool) -> None:
    floats, indices = example(3, with_factor)
    if with_factor:
        floats[3].data.abs_()
    assert torch.autograd.gradcheck(lambda *inputs: run(list(inputs), indices), floats)


def test_rows_that_are_apart_give_the_same_values_and_gradients() -> None:
    floats, indices = example(3, with_factor=False)
    wide = [torch.randn(len(one), 40, dtype=one.dtype) for one in floats[:3]]
    for one, rows in zip(floats, wide, strict=False):
        rows[:, 5 : 5 + one.size(1)] = one.detach()
    apart = [rows[:, 5 : 5 + one.size(1)].requires_grad_() for one, rows in zip(floats, wide, strict=False)]
    results = []
    for given in (floats[:3], apart):
        out, gate = gated_mean(*given, None, *indices)
        results.append((out, gate, *torch.autograd.grad(out.square().sum() + gate.square().sum(), given)))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def test_gates_of_any_size_give_finite_gradients() -> None:
    floats, indices = example(4, with_factor=False, dtype=torch.float32)
    floats[2].data *= 1000
    out, _ = run(floats, indices)
    out.sum().backward()
    assert out.isfinite().all()
    assert all(tensor.grad.isfinite().all() for tensor in floats[:3])
    torch.testing.assert_close(out, plain(*floats, *indices)[0], rtol=1e-4, atol=1e-4)


def test_nan_and_infinity_stay_visible() -> None:
    for place in range(3):
        floats, indices = example(4, with_factor=False)
        floats[place].data[indices[1][0] if place == 0 else indices[0][0] if place == 1 else 0, -1] = torch.nan
        assert run(floats, indices)[0][indices[1][0]].isnan().any()


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    own, other, edge = (torch.randn(size, requires_grad=True) for size in ((500, 64), (500, 64), (6000, 32)))
    indices, results, before = torch.randint(0, 500, (2, 6000)), [], torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        out = gated_mean(own, other, edge, None, *indices)
        results.append((*out, *torch.autograd.grad(out[0].square().sum() + out[1].sum(), (own, other, edge))))
    torch.set_num_threads(before)
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("wrong", [-1, SOURCES])
def test_an_edge_of_a_node_that_is_not_there_is_an_error(wrong: int) -> None:
    for side in range(2):
        floats, indices = example(3, with_factor=False)
        indices[side][4] = wrong
        with pytest.raises(IndexError, match="nodes that do not exist"):
            run(floats, indices)


def test_the_layer_takes_the_kernel_and_equals_the_form_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = GatedGCN(6).double()
    inputs = torch.randn(9, 6).double(), torch.randint(0, 9, (2, 31)), torch.randn(31, 6).double()
    before = [tensor.clone() for tensor in inputs]
    results = []
    for absent in ("gated_sum", None):
        with monkeypatch.context() as patch:
            if absent:
                patch.delattr(gatedgcn, absent)
            else:
                patch.setattr(gatedgcn, "can_run", lambda *_: False)
            layer.zero_grad()
            x_new, edge_new = layer(*inputs)
            (x_new.square().sum() + edge_new.square().sum()).backward()
            results.append([x_new, edge_new, *(parameter.grad.clone() for parameter in layer.parameters())])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(list(inputs), before, rtol=0, atol=0)


@pytest.mark.parametrize("options", [{}, {"equivstable_pe": True}, {"edge_residual": False, "residual": False}])
@pytest.mark.parametrize("training", [True, False])
def test_the_layer_equals_the_layer_without_kernels(
    training: bool, options: dict[str, bool]
) -> None:
    layer = GatedGCN(6, 0.0 if training else 0.5, **options).double()
    encoding = (torch.randn(9, 3).double(),) if options.get("equivstable_pe") else ()
    inputs = [torch.randn(rows, 6).double().requires_grad_() for rows in (9, 31)]
    edge_index, results = torch.randint(0, 9, (2, 31)), []
    layer(inputs[0], edge_index, inputs[1], *encoding)  # moves the running statistics
    for context in (contextlib.nullcontext, without_kernels):
        own = copy.deepcopy(layer).train(training)
        with context():
            outputs = own(inputs[0], edge_index, inputs[1], *encoding)
            value = sum((out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum() for out in outputs)
            grads = torch.autograd.grad(value, (*inputs, *own.parameters()))
        results.append((*outputs, *grads, *own.buffers()))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


def test_halves_take_the_form_without_it() -> None:
    layer = GatedGCN(6)
    inputs = torch.randn(9, 6), torch.randint(0, 9, (2, 31)), torch.randn(31, 6)
    expected = layer(*inputs)
    assert not gatedgcn.can_run(inputs[0].bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(*inputs)
    torch.testing.assert_close([t.float() for t in found], list(expected), rtol=0.1, atol=0.1)
