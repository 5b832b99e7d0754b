"""Triton kernels of full attention against plain torch; run by test_triton_full.py in a process of its own."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import FullAttention, GraphContext, SimplifiedL2Attention, full, triton_full_attention
from graphgps_kmip.attention.full import full_attention
from graphgps_kmip.attention.pair_attention import pair_attention
from graphgps_kmip.common.node_pairs import all_pairs
from graphgps_kmip.errors import InputError
from graphgps_kmip.native import without_kernels
from tests.attention.test_pair_attention import PARTS, by_the_formula, call, graphs, leaves, numbers
from tests.search.triton_runs import DEVICE, check_sees_a_wrong_gradient

thorough = pytest.mark.thorough  # the interpreter takes up to a second for each
SIZES = [5, 0, 1, 19]  # no node, one node, more than a tile of 16


def context_of(sizes: list[int]) -> GraphContext:
    context = graphs(sizes)
    return GraphContext(context.batch.to(DEVICE), context.ptr.to(DEVICE))


def moved(inputs: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return leaves(tuple(one if one is None else one.to(DEVICE) for one in inputs))


@pytest.mark.parametrize("parts", [PARTS[0], "", *(pytest.param(one, marks=thorough) for one in PARTS[1:-1])])
def test_outputs_and_gradients_equal_the_formula(parts: str) -> None:
    context = context_of(SIZES)
    inputs = moved(numbers(context, 2, 3, parts))
    present = [one for one in inputs if one is not None]
    found, expected = call(inputs, context, 2), by_the_formula(inputs, context, 2)
    cotangent = torch.randn_like(found)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(
        torch.autograd.grad(found, present, cotangent), torch.autograd.grad(expected, present, cotangent),
        rtol=1e-10, atol=1e-10,
    )  # fmt: skip


CASES = [(40, 5, "key_bias theta phi", 0.3), (40, 5, "", 0.0), (70, 20, "", 0.7), (70, 100, "", 0.3)]


@pytest.mark.parametrize(
    ("size", "dim", "parts", "dropout"), [CASES[0], *(pytest.param(*one, marks=thorough) for one in CASES[1:])]
)
def test_the_same_weights_are_dropped_as_in_the_plain_form(size: int, dim: int, parts: str, dropout: float) -> None:
    context = context_of([3, size])
    inputs = moved(numbers(context, 2, dim, parts))
    present = [one for one in inputs if one is not None]
    torch.manual_seed(5)
    found = call(inputs, context, 2, dropout, scale=0.2)
    cotangent = torch.randn_like(found)
    grads = torch.autograd.grad(found, present, cotangent, create_graph=True)  # by the plain form, with its hash
    torch.manual_seed(5)
    again = call(inputs, context, 2, dropout, scale=0.2)
    torch.testing.assert_close(torch.autograd.grad(again, present, cotangent), grads, rtol=1e-9, atol=1e-9)
    if dropout:
        assert (call(inputs, context, 2, scale=0.2) != found).any()


def test_full_attention_is_the_same_without_numbers_and_has_second_derivatives() -> None:
    context = context_of([4, 1])
    qkv = torch.randn(5, 3 * 2 * 2, dtype=torch.float64, device=DEVICE, requires_grad=True)
    torch.testing.assert_close(
        full_attention(qkv, context, 2), pair_attention(qkv, context, 2, scale=2**-0.5), rtol=1e-12, atol=1e-12
    )
    assert torch.autograd.gradcheck(lambda qkv: full_attention(qkv, context, 2), qkv, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda qkv: full_attention(qkv, context, 2), qkv, fast_mode=True)


def test_scores_whose_exponentials_overflow_change_nothing_beyond_the_graph() -> None:
    context = context_of([5, 18])
    qkv, key_bias, _, _ = numbers(context, 1, 2)
    results = []
    for shift in (0.0, 2000.0):
        inputs = moved((qkv, key_bias + shift, None, None))
        out = call(inputs, context, 1)
        results.append([out, *torch.autograd.grad(out.square().sum(), inputs[:2])])
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-9)


def test_minus_infinity_removes_a_pair_and_a_query_without_pairs_gets_zero() -> None:
    context = context_of([20, 3])
    qkv, _, theta, _ = numbers(context, 1, 2)
    query, key = all_pairs(context.ptr)
    theta[:, (query == 1) | ((query == 2) & (key < 18))] = -torch.inf  # all, and the whole first tile
    inputs = moved((qkv, None, theta, None))
    found = call(inputs, context, 1)
    torch.testing.assert_close(found, by_the_formula(inputs, context, 1), rtol=1e-11, atol=1e-11)
    assert found[1].eq(0).all()
    assert all(one.isfinite().all() for one in torch.autograd.grad(found.sum(), [inputs[0], inputs[2]]))


@pytest.mark.parametrize("bad", [torch.nan, 1e200])
def test_what_is_not_finite_stays_visible_in_its_graph(bad: float) -> None:
    context = context_of([3, 4])
    qkv = torch.randn(7, 6, dtype=torch.float64, device=DEVICE)
    qkv[4, :4] = bad  # query and key of one node of the second graph; 1e200: their product overflows
    out = full_attention(qkv, context, 1)
    assert out[:3].isfinite().all()
    assert out[4].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])  # the interpreter has no products of bfloat16
def test_other_precisions_are_close_to_double_and_repeat_bit_for_bit(dtype: torch.dtype) -> None:
    context = context_of([17, 2])
    inputs = moved(numbers(context, 2, 4))
    given = leaves(inputs, dtype)
    runs = []
    for _ in range(2):
        out = call(given, context, 2)
        runs.append([out, *torch.autograd.grad(out.float().square().sum(), given)])
    assert {one.dtype for one in runs[0]} == {dtype}
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
    exact = leaves(given)
    with without_kernels():
        out = call(exact, context, 2)
        wanted = [out, *torch.autograd.grad(out.square().sum(), exact)]
    tolerance = 40 * torch.finfo(dtype).eps
    for one, other in zip(runs[0], wanted, strict=True):
        largest = float(other.detach().abs().max())
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance * largest)


def test_layers_take_the_kernels_where_graphs_differ_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for name in ("full_attention_forward", "full_attention_backward"):
        kernel = getattr(triton_full_attention, name)
        monkeypatch.setattr(triton_full_attention, name, lambda *given, k=kernel: calls.append(k) or k(*given))
    layer, x = FullAttention(8, 2, 0.5).double().to(DEVICE), torch.randn(7, 8, dtype=torch.float64, device=DEVICE)
    layer(x, context_of([3, 4]).batch).sum().backward()
    assert len(calls) == 2
    context = context_of([3, 4])
    assert full.can_run(layer.qkv(x), context, 2, 0.5)
    layer.eval()
    found = layer(x, context)
    with without_kernels():
        torch.testing.assert_close(found, layer(x, context), rtol=1e-11, atol=1e-11)
    calls.clear()
    layer(x[:6], context_of([3, 3]).batch)
    assert not calls  # torch's attention needs no padding
    pairs = GraphContext(context.batch, context.ptr, pair_attr=torch.randn(25, 8, dtype=torch.float64, device=DEVICE))
    SimplifiedL2Attention(8, 2).double().to(DEVICE)(x, pairs).sum().backward()
    assert len(calls) == 2


def test_heads_of_more_than_128_channels_are_left_to_torch() -> None:
    inputs = (torch.empty(1, 3 * 2 * dim, device=DEVICE) for dim in (128, 129))
    assert [triton_full_attention.can_run(qkv, 2) for qkv in inputs] == [True, False]


def test_graphs_with_too_many_pairs_to_count_are_one_clear_line() -> None:
    qkv, ptr = torch.empty(1, 3, device=DEVICE).expand(2**16, 3), torch.tensor([0, 2**16], device=DEVICE)
    theta = torch.empty(1, 1, device=DEVICE).expand(1, 2**32)
    with pytest.raises(InputError, match="a graph of 65536 nodes has more than 2\\^31 pairs"):
        triton_full_attention.full_attention_forward(qkv, ptr, 1, 1.0, 0.0, 0, (None, theta, None))


def test_the_hash_is_that_of_the_plain_form_whatever_the_seed() -> None:
    context = context_of([9, 2])
    qkv = torch.zeros(11, 3 * 2, dtype=torch.float64, device=DEVICE)
    qkv[:, 4:] = 1.0  # equal weights: an output is the share of what is kept
    for seed, dropout in itertools.product((0, 1, 2**62 - 1), (0.25, 0.75)):
        kept = full.drop_factors(2, 2, 9, dropout, seed)[0].mean(-1)  # of the first graph
        out, _ = triton_full_attention.full_attention_forward(qkv, context.ptr, 2, 1.0, dropout, seed)
        torch.testing.assert_close(out[:9].cpu(), kept.T, rtol=1e-12, atol=1e-12)


@thorough
def test_the_check_before_the_first_use_passes_and_sees_a_wrong_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    check_sees_a_wrong_gradient(triton_full_attention, "full_attention_backward", monkeypatch)
