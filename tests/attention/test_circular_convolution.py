"""Circular convolution of ragged batches against the sum over all places, its gradients, lengths and memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import direct_convolution, size_groups
from graphgps_kmip.attention.circular_convolution import circular_convolution, gated_convolutions
from graphgps_kmip.attention.direct_convolution import can_sum
from graphgps_kmip.attention.size_groups import SizeGroups, fast_length, is_fast
from graphgps_kmip.native import unavailable_reason
from tests.native.vector_units import VECTOR_UNITS

BATCHES = [[5, 3, 1, 0, 2, 7, 7, 11, 8], [13], [1], [2], [97], [12, 12], [16, 9, 23, 31, 1, 1], [0], []]


def bounds(sizes: list[int]) -> Tensor:
    return torch.tensor([0, *sizes]).cumsum(0)


def by_sums(x: Tensor, filters: Tensor, ptr: Tensor, groups: SizeGroups) -> Tensor:
    """Equation 3, tap by tap."""
    first = {size: sum(groups.sizes[:place]) for place, size in enumerate(groups.sizes)}
    out = torch.zeros_like(x)
    for start, end in zip(ptr.tolist(), ptr.tolist()[1:], strict=False):
        size = end - start
        for t in range(size):
            for i in range(size):
                out[start + t] += x[start + i] * filters[first[size] + (t - i) % size]
    return out


def inputs(sizes: list[int], channels: int = 3) -> tuple[Tensor, Tensor, SizeGroups]:
    torch.manual_seed(0)
    groups = SizeGroups.of(bounds(sizes))
    shapes = (sum(sizes), channels), (groups.num_rows, channels)
    return *(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes), groups


@pytest.fixture(params=["sums", "a block for each size", "one block"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "sums" and unavailable_reason("direct_convolution") is not None:
        pytest.skip("no C compiler")
    monkeypatch.setattr(direct_convolution, "SUM_PAIRS", 10**9 if request.param == "sums" else -1)
    monkeypatch.setattr(size_groups, "CALL", 10**9 if request.param == "one block" else 0)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("sizes", BATCHES, ids=str)
def test_it_equals_the_sum_over_all_places(sizes: list[int]) -> None:
    x, filters, groups = inputs(sizes)
    expected = by_sums(x, filters, bounds(sizes), groups)
    torch.testing.assert_close(circular_convolution(x, filters, groups), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("sizes", [[5, 3, 1, 0, 3], [13], [8], [1, 1]], ids=str)
def test_gradients_equal_finite_differences(sizes: list[int]) -> None:
    x, filters, groups = inputs(sizes, channels=2)
    assert torch.autograd.gradcheck(lambda *both: circular_convolution(*both, groups), (x, filters))


def gated(sizes: list[int], gate_first: bool, num_gates: int = 3) -> tuple[Tensor, Tensor, SizeGroups]:
    """Gates and value, and filters, of two channels."""
    torch.manual_seed(0)
    groups, num_filters = SizeGroups.of(bounds(sizes)), num_gates - gate_first
    shapes = (sum(sizes), 2 * (num_gates + 1)), (groups.num_rows, 2 * num_filters)
    return *(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes), groups


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("sizes", [[5, 3, 1, 0, 2, 7, 7, 8], [13], [16], [4, 4], [0, 3]], ids=str)
def test_gates_between_convolutions_equal_one_step_after_the_other(sizes: list[int], gate_first: bool) -> None:
    x, filters, groups = gated(sizes, gate_first)
    *gates, value = x.split(2, 1)
    if gate_first:
        value = gates.pop(0) * value
    for gate, taps in zip(gates, filters.split(2, 1), strict=True):
        value = gate * by_sums(value, taps, bounds(sizes), groups)
    found = gated_convolutions(x, filters, groups, gate_first)
    torch.testing.assert_close(found, value, atol=1e-11, rtol=1e-11)
    grad = torch.randn_like(value)
    for one, other in zip(*(torch.autograd.grad(y, (x, filters), grad) for y in (found, value)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-11)


def test_no_gate_is_changed_in_place() -> None:
    x, filters, groups = gated([6], gate_first=True)
    before = x.detach().clone(), filters.detach().clone()
    gated_convolutions(x, filters, groups, True).sum().backward()
    assert torch.equal(x, before[0])
    assert torch.equal(filters, before[1])


@pytest.mark.parametrize("sizes", [[64], [61], [30, 30, 30]], ids=str)
def test_channels_in_chunks_give_the_same(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def results() -> list[Tensor]:
        x, filters, groups = inputs(sizes, channels=7)
        out = circular_convolution(x, filters, groups)
        out.square().sum().backward()
        return [out, x.grad, filters.grad]

    monkeypatch.setattr(direct_convolution, "SUM_PAIRS", -1)
    whole = results()
    monkeypatch.setattr("graphgps_kmip.attention.circular_convolution.CHUNK_NUMBERS", {"cpu": 1})
    monkeypatch.setattr("graphgps_kmip.attention.circular_convolution.FEW_CHANNELS", 2)
    for one, other in zip(results(), whole, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_other_precisions_are_transformed_in_float32(dtype: torch.dtype, error: float) -> None:
    x, filters, groups = inputs([100, 31])
    expected = circular_convolution(x, filters, groups)
    found = circular_convolution(x.to(dtype), filters.to(dtype), groups)
    assert found.dtype == dtype
    assert float((found.double() - expected).norm() / expected.norm()) < error


def test_only_the_inputs_are_kept_for_the_backward_pass() -> None:
    x, filters, groups = inputs([50, 31, 50])
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one):
        circular_convolution(x, filters, groups)
    assert sorted(one.data_ptr() for one in kept) == sorted((x.data_ptr(), filters.data_ptr()))
    kept.clear()
    x, filters, groups = gated([50, 31, 50], gate_first=False)
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one):
        gated_convolutions(x, filters, groups, False)
    assert sorted(one.data_ptr() for one in kept) == sorted((x.data_ptr(), filters.data_ptr()))


def test_no_transform_has_a_slow_length() -> None:
    for sizes in BATCHES:
        for block in SizeGroups.of(bounds(sizes)).blocks:
            assert is_fast(block.length)
    assert [fast_length(n) for n in (0, 1, 11, 13, 97, 121)] == [1, 1, 12, 14, 98, 125]


def test_many_small_graphs_of_many_sizes_are_one_block_and_one_large_graph_stands_apart() -> None:
    assert len(SizeGroups.of(bounds(list(range(10, 40)))).blocks) == 1
    assert len(SizeGroups.of(bounds([20, 100_000])).blocks) == 2


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
    monkeypatch.setattr(direct_convolution, "THREAD_WORK", 1)
    groups, results, before = SizeGroups.of(bounds([9, 40, 1, 9, 33, 0, 4])), [], torch.get_num_threads()
    torch.manual_seed(0)
    x, filters = (torch.randn(rows, 3 * channels, dtype=dtype) for rows in (96, groups.num_rows))
    for pairs, threads in ((-1, 1), (10**9, 1), (10**9, 3)):
        monkeypatch.setattr(direct_convolution, "SUM_PAIRS", pairs)
        torch.set_num_threads(threads)
        one, other = x.clone().requires_grad_(), filters[:, : 2 * channels].clone().requires_grad_()
        out = gated_convolutions(one, other, groups, False)
        results.append((out, *torch.autograd.grad(out.square().sum(), (one, other))))
    torch.set_num_threads(before)
    for transformed, alone, shared in zip(*results, strict=True):
        error = (alone - transformed).norm() / transformed.norm()
        assert error < (1e-5 if dtype == torch.float32 else 1e-13)
        assert torch.equal(alone, shared)


def test_filters_of_another_length_are_refused() -> None:
    x, filters, groups = inputs([5, 3])
    with pytest.raises(ValueError, match=r"filters must have shape \(8, 3\) for graphs of sizes \[3, 5\]"):
        circular_convolution(x, filters[:-1], groups)
