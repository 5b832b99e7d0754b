"""GECO, Hyena and the convolutions beneath them against their algorithms written with loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import GECOAttention, HyenaAttention
from graphgps_kmip.attention.geco import (
    NORMS,
    TINY,
    FilterShape,
    GlobalContextBlock,
    LongFilter,
    Segments,
    causal_convolution,
    place_features,
)
from graphgps_kmip.ops import circular_convolution as convolution_module
from graphgps_kmip.ops.circular_convolution import SizeGroups, can_sum, circular_convolution, gated_convolutions
from graphgps_kmip.ops.native import unavailable_reason
from tests.attention.contexts import context_of
from tests.native.vector_units import VECTOR_UNITS

DIM = 4


def circulant(taps: Tensor) -> Tensor:
    """The matrix T of each channel, T_ti = z_(t-i) mod n: (n, C) -> (C, n, n)."""
    place = torch.arange(len(taps))
    return taps[(place[:, None] - place) % len(taps)].permute(2, 0, 1)


def geco(**options: object) -> GECOAttention:
    torch.manual_seed(0)
    return GECOAttention(DIM, 1, **options).double()


@pytest.mark.parametrize(
    ("form", "order"), [("gate_after", 1), ("gate_after", 2), ("gate_after", 3), ("gate_first", 2), ("gate_first", 3)]
)
def test_the_global_block_equals_its_formula(form: str, order: int) -> None:
    torch.manual_seed(0)
    block = GlobalContextBlock(6, DIM, order=order, form=form, shape=FilterShape(), filter_norm="l1").double()
    x, groups = torch.randn(11, 6, dtype=torch.float64), SizeGroups.of(torch.tensor([0, 11]))
    *gates, value = block.project(x).split(DIM, dim=1)
    for number, taps in enumerate(block.filters((11,)).split(DIM, 1)):
        value = value * gates[number] if form == "gate_first" else value
        value = torch.einsum("cti,ic->tc", circulant(taps), value)
        value = value * gates[number] if form == "gate_after" else value
    value = gates[-1] * value if form == "gate_first" else value
    torch.testing.assert_close(block(x, groups), value, atol=1e-12, rtol=1e-12)


def test_the_layer_is_batch_norm_of_both_and_the_global_block() -> None:
    layer, size = geco().train(), 9
    edge_index = torch.tensor([[0, 1, 1, 5, 8], [1, 0, 2, 1, 8]])
    x, adjacency = torch.randn(size, DIM, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)
    outward, inward = torch.bincount(edge_index[0], minlength=size), torch.bincount(edge_index[1], minlength=size)
    for source, target in edge_index.T.tolist():
        adjacency[target, source] += 1 / math.sqrt(outward[source] * inward[target])
    both = torch.cat([x, adjacency @ x], 1)
    normed = (both - both.mean(0)) / (both.var(0, unbiased=False) + layer.norm.eps).sqrt()
    expected = layer.mix(normed, SizeGroups.of(torch.tensor([0, size])))
    torch.testing.assert_close(layer(x, context_of([size], edge_index=edge_index)), expected, atol=1e-12, rtol=1e-12)


def test_the_local_convolution_wraps_around_and_adds_taps_beyond_a_small_graph() -> None:
    layer = geco(local="convolution", conv_width=5)
    x = torch.randn(3, DIM, dtype=torch.float64)
    expected = sum(layer.convolution.taps[tap] * x.roll(tap, 0) for tap in range(5))
    torch.testing.assert_close(layer.convolution(x, SizeGroups.of(torch.tensor([0, 3]))), expected)


def divide(taps: Tensor, norm: str, sizes: tuple[int, ...]) -> Tensor:
    return NORMS[norm](taps, Segments.of(sizes, taps.device))


@pytest.mark.parametrize("numbers", [2, 10**6], ids=["some columns at a time", "all columns"])
@pytest.mark.parametrize("sizes", [(5,), (1, 2, 5), ()], ids=str)
def test_the_gradients_of_taps_that_are_divided_by_their_sum_are_those_of_autograd(
    sizes: tuple[int, ...], numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphgps_kmip.attention.geco.SUM_NUMBERS", numbers)
    torch.manual_seed(0)
    taps = torch.randn(sum(sizes), 3, dtype=torch.float64, requires_grad=True)
    more = torch.zeros(sum(sizes), 1), torch.full((sum(sizes), 1), TINY / 10)
    columns = torch.cat([taps.detach(), *more], 1).requires_grad_()

    def plain(taps: Tensor) -> Tensor:
        parts = taps.split(list(sizes)) if sizes else [taps]
        return torch.cat([part / part.abs().sum(0, keepdim=True).clamp(min=TINY) for part in parts])

    grad = torch.randn(sum(sizes), 5, dtype=torch.float64)
    outputs = divide(columns, "l1", sizes), plain(columns)
    torch.testing.assert_close(*((out, *torch.autograd.grad(out, columns, grad)) for out in outputs))


@pytest.mark.parametrize("norm", NORMS)
def test_filters_of_several_sizes_are_those_of_each_alone(norm: str) -> None:
    torch.manual_seed(0)
    taps, sizes = torch.randn(13, 3, dtype=torch.float64, requires_grad=True), (1, 4, 8)
    together = divide(taps, norm, sizes)
    alone = torch.cat([divide(part, norm, (len(part),)) for part in taps.split(list(sizes))])
    torch.testing.assert_close(together, alone)
    if norm == "l2":
        varying = together - torch.cat([part.mean(0).expand_as(part) for part in together.split(list(sizes))])
        expected = torch.tensor([[0.0], [1], [1]]).double().expand(3, 3)
        lengths = torch.stack([part.norm(dim=0) for part in varying.split(list(sizes))])
        torch.testing.assert_close(lengths, expected)
    (grad,) = torch.autograd.grad(together.square().sum(), taps)
    assert grad.isfinite().all()


def test_many_places_and_few_have_the_same_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    made, results = LongFilter(4).double(), []
    for few in (0, 10**6):
        monkeypatch.setattr("graphgps_kmip.attention.geco.FEW_PLACES", few)
        made.zero_grad()
        taps = made((3, 50))
        taps.square().sum().backward()
        results.append([taps, *(parameter.grad for parameter in made.parameters())])
    torch.testing.assert_close(*results)


def test_places_are_fractions_so_that_sizes_share_one_network() -> None:
    like = torch.zeros((), dtype=torch.float64)
    features = place_features(Segments.of((1, 4), like.device), 5, like)
    assert features[0].tolist() == [0.0, 1.0, 1.0, 0.0, 0.0]
    quarter = features[2]  # t = 1 of n = 4
    assert quarter[0] == pytest.approx(1 / 3)
    assert quarter[2] == pytest.approx(0.0, abs=1e-12)
    assert quarter[4] == pytest.approx(-1.0)
    assert place_features(Segments.of((), like.device), 5, like).shape == (0, 5)


SIZES = [5, 1, 0, 7, 5]


def test_a_causal_convolution_equals_the_sum_over_earlier_places() -> None:
    torch.manual_seed(0)
    x = torch.randn(sum(SIZES), 3, dtype=torch.float64)
    filters = {size: torch.randn(size, 3, dtype=torch.float64) for size in (1, 5, 7)}
    expected = torch.zeros_like(x)
    ptr = context_of(SIZES).ptr
    for start, size in zip(ptr.tolist(), SIZES, strict=False):
        for t in range(size):
            for i in range(t + 1):
                expected[start + t] += x[start + i] * filters[size][t - i]
    torch.testing.assert_close(causal_convolution(x, torch.cat(list(filters.values())), ptr, tuple(filters)), expected)


def test_the_operator_equals_its_formula() -> None:
    torch.manual_seed(0)
    layer = HyenaAttention(4, 1).double().eval()
    x = torch.randn(7, 4, dtype=torch.float64)
    short = layer.project(x)
    mixed = layer.short_bias + torch.stack(
        [sum(layer.short[i] * short[t - i] for i in range(3) if t >= i) for t in range(7)]
    )
    gate, inner, value = mixed.split(4, 1)
    value, taps = value * inner, layer.filter((7,))
    rate = -math.log(1e-2) * torch.linspace(1 / 0.3, 1 / 1.5, 4)
    decay = torch.stack([torch.exp(-rate * t / 6) for t in range(7)])
    long = torch.stack([sum((taps * decay)[t - i] * value[i] for i in range(t + 1)) for t in range(7)])
    expected = layer.out(gate * (long + layer.skip * value))
    torch.testing.assert_close(layer(x), expected, atol=1e-6, rtol=1e-6)


BATCHES = [[5, 3, 1, 0, 2, 7, 7, 11, 8], [13], [2], [12, 12], [16, 9, 23, 31, 1, 1], [0], []]


def by_sums(x: Tensor, filters: Tensor, sizes: list[int]) -> Tensor:
    distinct = sorted(set(sizes) - {0})
    matrices = {len(taps): circulant(taps) for taps in filters.split(distinct)} if distinct else {}
    graphs = [torch.einsum("cti,ic->tc", matrices[len(graph)], graph) for graph in x.split(sizes) if len(graph)]
    return torch.cat(graphs) if graphs else x


def inputs(sizes: list[int], channels: int = 3) -> tuple[Tensor, Tensor, SizeGroups]:
    torch.manual_seed(0)
    groups = context_of(sizes).size_groups
    shapes = (sum(sizes), channels), (groups.num_rows, channels)
    return *(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes), groups


@pytest.fixture(params=["sums", "a block for each size", "one block"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "sums" and unavailable_reason("direct_convolution") is not None:
        pytest.skip("no C compiler")
    monkeypatch.setattr(convolution_module, "SUM_PAIRS", 10**9 if request.param == "sums" else -1)
    monkeypatch.setattr(convolution_module, "CALL", 10**9 if request.param == "one block" else 0)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("sizes", BATCHES, ids=str)
def test_it_equals_the_sum_over_all_places(sizes: list[int]) -> None:
    x, filters, groups = inputs(sizes)
    outputs, grad = (circular_convolution(x, filters, groups), by_sums(x, filters, sizes)), torch.randn_like(x)
    results = ((out, *torch.autograd.grad(out, (x, filters), grad, materialize_grads=True)) for out in outputs)
    torch.testing.assert_close(*results, atol=1e-12, rtol=1e-12)


def gates_of(sizes: list[int], gate_first: bool, num_gates: int = 3) -> tuple[Tensor, Tensor, SizeGroups]:
    torch.manual_seed(0)
    groups, num_filters = context_of(sizes).size_groups, num_gates - gate_first
    shapes = (sum(sizes), 2 * (num_gates + 1)), (groups.num_rows, 2 * num_filters)
    return *(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes), groups


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("sizes", [[5, 3, 1, 0, 2, 7, 7, 8], [13], [4, 4]], ids=str)
def test_gates_between_convolutions_equal_one_step_after_the_other(sizes: list[int], gate_first: bool) -> None:
    x, filters, groups = gates_of(sizes, gate_first)
    *gates, value = x.split(2, 1)
    if gate_first:
        value = gates.pop(0) * value
    for gate, taps in zip(gates, filters.split(2, 1), strict=True):
        value = gate * by_sums(value, taps, sizes)
    outputs, grad = (gated_convolutions(x, filters, groups, gate_first), value), torch.randn_like(value)
    results = ((out, *torch.autograd.grad(out, (x, filters), grad)) for out in outputs)
    torch.testing.assert_close(*results, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("sizes", [[64], [61], [30, 30, 30]], ids=str)
def test_channels_in_chunks_give_the_same(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def results() -> list[Tensor]:
        x, filters, groups = inputs(sizes, channels=7)
        out = circular_convolution(x, filters, groups)
        out.square().sum().backward()
        return [out, x.grad, filters.grad]

    monkeypatch.setattr(convolution_module, "SUM_PAIRS", -1)
    whole = results()
    monkeypatch.setattr("graphgps_kmip.ops.circular_convolution.CHUNK_NUMBERS", {"cpu": 1})
    monkeypatch.setattr("graphgps_kmip.ops.circular_convolution.FEW_CHANNELS", 2)
    torch.testing.assert_close(results(), whole, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("is_gated", [False, True])
def test_only_the_inputs_are_saved_for_the_backward_pass(is_gated: bool) -> None:
    x, filters, groups = gates_of([50, 31, 50], gate_first=False) if is_gated else inputs([50, 31, 50])
    convolve = gated_convolutions if is_gated else circular_convolution
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        convolve(x, filters, groups, *([False] if is_gated else []))
    assert sorted(tensor.data_ptr() for tensor in saved) == sorted((x.data_ptr(), filters.data_ptr()))


@pytest.mark.skipif(unavailable_reason("direct_convolution") is not None, reason="no C compiler")
def test_small_graphs_are_summed_and_large_ones_and_halves_are_transformed() -> None:
    for sizes, summed in (([24] * 30, True), (list(range(10, 40)), True), ([4000], False), ([20, 5000], False)):
        x, filters, groups = inputs(sizes, channels=1)
        assert can_sum(x, filters, groups) is summed
        assert not can_sum(x.bfloat16(), filters.float(), groups)
        assert not can_sum(x.bfloat16(), filters.bfloat16(), groups)


@pytest.mark.skipif(unavailable_reason("direct_convolution") is not None, reason="no C compiler")
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("instruction_set", VECTOR_UNITS, indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 15, 16, 33])
def test_sums_equal_transforms_for_any_channels_on_any_threads(
    channels: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution_module, "THREAD_WORK", 1)
    groups, results, before = context_of([9, 40, 1, 9, 33, 0, 4]).size_groups, [], torch.get_num_threads()
    torch.manual_seed(0)
    x, filters = (torch.randn(rows, 3 * channels, dtype=dtype) for rows in (96, groups.num_rows))
    for pairs, threads in ((-1, 1), (10**9, 1), (10**9, 3)):
        monkeypatch.setattr(convolution_module, "SUM_PAIRS", pairs)
        torch.set_num_threads(threads)
        leaves = x.clone().requires_grad_(), filters[:, : 2 * channels].clone().requires_grad_()
        out = gated_convolutions(*leaves, groups, False)
        results.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    torch.set_num_threads(before)
    for transformed, alone, shared in zip(*results, strict=True):
        error = (alone - transformed).norm() / transformed.norm()
        assert error < (1e-5 if dtype == torch.float32 else 1e-13)
        assert torch.equal(alone, shared)
