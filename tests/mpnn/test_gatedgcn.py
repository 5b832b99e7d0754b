"""The sums of GatedGCN, plain and as fused C loops, and the gate of EquivStableLapPE."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.mpnn import GatedGCN, gatedgcn
from graphgps_kmip.mpnn.gatedgcn import gated_sum
from graphgps_kmip.ops import gated_mean as operators
from graphgps_kmip.ops.gated_mean import gated_mean, linear_rows
from graphgps_kmip.ops.native import unavailable_reason, without_kernels
from tests.mpnn.cases import DIM, call, check_gradients, make_graph
from tests.native.vector_units import VECTOR_UNITS
from tests.pairwise import pairwise

WIDTH = 3
SOURCES, TARGETS, EDGES = 7, 5, 23


def plain(gate: Tensor, value: Tensor, factor: Tensor | None, source: Tensor, target: Tensor, num: int) -> list[Tensor]:
    weight = gate.sigmoid() * (1 if factor is None else factor)
    message = weight * value[source]
    return [torch.zeros(num, gate.size(1), dtype=gate.dtype).index_add(0, target, part) for part in (message, weight)]


def example(with_factor: bool, num_edges: int = EDGES) -> tuple[list[Tensor | None], tuple[Tensor, Tensor, int]]:
    """Node 4 is no target, node 6 no source; source and target sets differ in size."""
    torch.manual_seed(0)
    shapes = [(num_edges, WIDTH), (SOURCES, WIDTH), (num_edges, 1) if with_factor else None]
    floats = [None if shape is None else torch.randn(shape).double().requires_grad_() for shape in shapes]
    indices = torch.randint(0, SOURCES - 1, (num_edges,)), torch.randint(0, TARGETS - 1, (num_edges,)), TARGETS
    return floats, indices


@pytest.fixture(params=[4 * WIDTH * 8, 8, gatedgcn.CHUNK_BYTES], ids=["six chunks", "edge by edge", "one chunk"])
def chunk_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(gatedgcn, "CHUNK_BYTES", request.param)
    return request.param


@pytest.mark.parametrize("with_factor", [False, True])
@pytest.mark.parametrize("num_edges", [EDGES, 1, 0])
def test_sums_and_gradients_equal_the_plain_form(chunk_bytes: int, with_factor: bool, num_edges: int) -> None:
    assert chunk_bytes == gatedgcn.CHUNK_BYTES
    floats, indices = example(with_factor, num_edges)
    actual, expected = gated_sum(*floats, *indices), plain(*floats, *indices)
    torch.testing.assert_close(list(actual), expected, rtol=1e-12, atol=1e-12)
    assert (actual[0][TARGETS - 1] == 0).all()
    check_gradients(actual, expected, floats, tolerance=1e-12)


def test_only_inputs_are_kept_for_the_backward() -> None:
    floats, indices = example(with_factor=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        gated_sum(*floats, *indices)
    inputs = {t.data_ptr() for t in (*floats, *indices[:2])}
    assert {t.data_ptr() for t in saved} == inputs
    assert len(saved) == len(inputs)


def test_halves_are_summed_in_float32() -> None:
    gate = torch.full((4096, 1), 20.0, dtype=torch.bfloat16).requires_grad_()  # the sigmoid is 1
    value = torch.ones(1, 1, dtype=torch.bfloat16).requires_grad_()
    zeros = torch.zeros(4096, dtype=torch.long)
    total, normaliser = gated_sum(gate, value, None, zeros, zeros, 1)
    torch.testing.assert_close(total, torch.full((1, 1), 4096.0))  # bfloat16 would stop at 256
    torch.testing.assert_close(normaliser, torch.full((1, 1), 4096.0))
    total.sum().backward()
    assert gate.grad.dtype == value.grad.dtype == torch.bfloat16
    torch.testing.assert_close(value.grad, torch.full_like(value, 4096.0))


@pytest.mark.parametrize("num_rows", [0, 1, 8, 11])
@pytest.mark.parametrize("with_bias", [False, True])
def test_products_of_some_rows_at_a_time_equal_the_linear_map(
    num_rows: int, with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "ROWS", 4)
    shapes = [(num_rows, 3), (5, 3), *[(5,)] * with_bias]
    floats = [torch.randn(shape, dtype=torch.double).requires_grad_() for shape in shapes]
    out, expected = linear_rows(*floats), nn.functional.linear(*floats)
    torch.testing.assert_close(out, expected)
    check_gradients([out, out.square()], [expected, expected.square()], floats, tolerance=1e-12)


needs_c = pytest.mark.skipif(unavailable_reason("gated_sum") is not None, reason="no C compiler")


def wide_example(dim: int, with_factor: bool, num_edges: int = EDGES, dtype: torch.dtype = torch.float64) -> tuple:
    shapes = [(TARGETS, 2 * dim), (SOURCES, 2 * dim), (num_edges, dim), (num_edges, 1)]
    floats = [(2 * torch.randn(shape, dtype=dtype)).requires_grad_() for shape in shapes]
    if not with_factor:
        floats[3] = None
    indices = [torch.randint(0, nodes - 1, (num_edges,)) for nodes in (SOURCES, TARGETS)]
    return floats, indices


def plain_mean(
    x_target: Tensor, x_source: Tensor, edge: Tensor, factor: Tensor | None, source: Tensor, target: Tensor
) -> tuple:
    (a, d), (b, h) = x_target.chunk(2, 1), x_source.chunk(2, 1)
    gate = edge + d[target] + h[source]
    weight = gate.sigmoid() * (1 if factor is None else factor)
    total, normaliser = (torch.zeros_like(a).index_add(0, target, part) for part in (weight * b[source], weight))
    return a + total / (normaliser + 1e-6), gate


def run(floats: list[Tensor | None], indices: list[Tensor]) -> tuple[Tensor, Tensor]:
    x_target, x_source, edge, factor = floats
    return gated_mean(x_target, x_source, edge, factor, *indices)


@needs_c
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("instruction_set", VECTOR_UNITS, indirect=True)
@pytest.mark.parametrize(
    ("dim", "num_edges", "with_factor", "dtype"),
    pairwise([1, 3, 16, 21], [EDGES, 1, 0], [False, True], [torch.float64, torch.float32]),
)
def test_values_and_gradients_equal_the_plain_form(
    dim: int, num_edges: int, with_factor: bool, dtype: torch.dtype
) -> None:
    floats, indices = wide_example(dim, with_factor, num_edges, dtype)
    if with_factor:
        floats[3].data.abs_()  # as those of the distance gate: with other signs a sum may come near 0
    actual, expected = run(floats, indices), plain_mean(*floats, *indices)
    tolerance = 1e-11 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    check_gradients(actual, expected, floats, tolerance)  # the edges of a last layer go nowhere


@needs_c
def test_rows_that_are_apart_give_the_same_values_and_gradients() -> None:
    floats, indices = wide_example(3, with_factor=False)
    wide = [torch.randn(len(tensor), 40, dtype=tensor.dtype) for tensor in floats[:3]]
    for tensor, rows in zip(floats, wide, strict=False):
        rows[:, 5 : 5 + tensor.size(1)] = tensor.detach()
    apart = [rows[:, 5 : 5 + tensor.size(1)].requires_grad_() for tensor, rows in zip(floats, wide, strict=False)]
    results = []
    for inputs in (floats[:3], apart):
        out, gate = gated_mean(*inputs, None, *indices)
        results.append((out, gate, *torch.autograd.grad(out.square().sum() + gate.square().sum(), inputs)))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


@needs_c
def test_gates_of_any_size_give_finite_gradients() -> None:
    floats, indices = wide_example(4, with_factor=False, dtype=torch.float32)
    floats[2].data *= 1000
    out, _ = run(floats, indices)
    out.sum().backward()
    assert out.isfinite().all()
    assert all(tensor.grad.isfinite().all() for tensor in floats[:3])
    torch.testing.assert_close(out, plain_mean(*floats, *indices)[0], rtol=1e-4, atol=1e-4)


@needs_c
def test_nan_and_infinity_stay_visible() -> None:
    for place in range(3):
        floats, indices = wide_example(4, with_factor=False)
        floats[place].data[indices[1][0] if place == 0 else indices[0][0] if place == 1 else 0, -1] = torch.nan
        assert run(floats, indices)[0][indices[1][0]].isnan().any()


@needs_c
@pytest.mark.parametrize("wrong", [-1, SOURCES])
def test_an_edge_of_a_node_that_is_not_there_is_an_error(wrong: int) -> None:
    for side in range(2):
        floats, indices = wide_example(3, with_factor=False)
        indices[side][4] = wrong
        with pytest.raises(IndexError, match="nodes that do not exist"):
            run(floats, indices)


@needs_c
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("instruction_set", VECTOR_UNITS, indirect=True)
@pytest.mark.parametrize(
    ("options", "training", "dropout", "num_edges"),
    pairwise(
        [{}, {"equivstable_pe": True}, {"edge_residual": False, "residual": False}, {"act": nn.GELU}],
        [True, False],
        [0.0, 0.4],
        [900, 31, 1, 0],
    ),
)
def test_the_layer_equals_the_layer_without_kernels(
    training: bool, dropout: float, num_edges: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "ROWS", 256)
    layer = GatedGCN(21, dropout, **options).double()
    encoding = (torch.randn(150, 3).double(),) if options.get("equivstable_pe") else ()
    x, edge_attr, more_edges = (torch.randn(rows, 21).double().requires_grad_() for rows in (150, num_edges, 40))
    layer(x, torch.randint(0, 150, (2, 40)), more_edges, *encoding)  # moves the running statistics
    edge_index, results = torch.randint(0, 150, (2, num_edges)), []
    for context in (contextlib.nullcontext, without_kernels):
        copied = copy.deepcopy(layer).train(training)
        torch.manual_seed(1)
        with context():
            outputs = copied(x, edge_index, edge_attr, *encoding)
            value = sum((out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum() for out in outputs)
            grads = torch.autograd.grad(value, (x, edge_attr, *copied.parameters()))
        results.append((*outputs, *grads, *copied.buffers()))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@needs_c
def test_the_edge_update_of_a_batch_repeats_on_any_number_of_threads_and_keeps_nan() -> None:
    layer, edge_index, before = GatedGCN(32, 0.2), torch.randint(0, 500, (2, 6000)), torch.get_num_threads()
    x, edge_attr, results = torch.randn(500, 32, requires_grad=True), torch.randn(6000, 32, requires_grad=True), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        edges = layer(x, edge_index, edge_attr)[1]
        results.append((edges, *torch.autograd.grad(edges.square().sum(), (x, edge_attr))))
    torch.set_num_threads(before)
    torch.testing.assert_close(*results, rtol=0, atol=0)
    edge_attr.data[7, 3] = torch.nan
    assert layer.eval()(x, edge_index, edge_attr)[1][7].isnan().any()


def test_gatedgcn_updates_its_edges_without_the_gate() -> None:
    torch.manual_seed(0)
    gated, graph = GatedGCN(DIM, act=nn.GELU, equivstable_pe=True).double().eval(), make_graph(6)
    assert isinstance(gated.gate.mlp[1], nn.GELU)
    free = GatedGCN(DIM, act=nn.GELU).double().eval()
    free.load_state_dict(gated.state_dict(), strict=False)
    torch.testing.assert_close(call(gated, graph)[1], call(free, graph)[1], rtol=0, atol=0)
    assert not torch.equal(call(gated, graph)[0], call(free, graph)[0])
