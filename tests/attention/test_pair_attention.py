"""Attention with biases of keys and pairs and factors of pairs: C loops and torch forms against Python loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import dropout as drop

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.ops.context import all_pairs
from graphgps_kmip.ops.native import unavailable_reason
from graphgps_kmip.ops.pair_attention import (
    pair_attention,
    plain_pair_attention,
    sparse_pair_attention,
)
from tests.attention.contexts import context_of
from tests.attention.largest import largest_tensor

SIZES = [5, 0, 1, 9]  # the second graph has no node
PARTS = ["key_bias theta phi", "theta phi", "key_bias phi", "key_bias theta", "key_bias", "theta", "phi", ""]
needs_c = pytest.mark.skipif(unavailable_reason("full_attention", "-DPAIRS") is not None, reason="no C compiler")
Inputs = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


def numbers(context: GraphContext, num_heads: int, dim: int, parts: str = PARTS[0], size: float = 1.0) -> Inputs:
    num_nodes, rows = len(context.batch), (num_heads, context.num_pairs)
    shapes = {"key_bias": (num_nodes, num_heads), "theta": rows, "phi": rows}
    qkv = size * torch.randn(num_nodes, 3 * num_heads * dim, dtype=torch.float64)
    names = parts.split()
    return qkv, *(size * torch.randn(shapes[name], dtype=torch.float64) if name in names else None for name in shapes)


def call(inputs: Inputs, context: GraphContext, num_heads: int, dropout: float = 0.0, scale: float = 0.7) -> Tensor:
    qkv, key_bias, theta, phi = inputs
    return pair_attention(
        qkv, context, num_heads, scale=scale, key_bias=key_bias, theta=theta, phi=phi, dropout=dropout
    )


def plain(inputs: Inputs, context: GraphContext, num_heads: int, dropout: float = 0.0, scale: float = 0.7) -> Tensor:
    thin = partial(drop, p=dropout)
    return plain_pair_attention(*inputs, context=context, num_heads=num_heads, scale=scale, thin=thin)


def sparse(inputs: Inputs, context: GraphContext, num_heads: int, dropout: float = 0.0, scale: float = 0.7) -> Tensor:
    qkv, key_bias, theta, phi = inputs
    theta, phi = (each if each is None else each.T for each in (theta, phi))
    q, k, v = qkv.unflatten(1, (3, num_heads, -1)).unbind(1)
    pairs = all_pairs(context.ptr)
    out = sparse_pair_attention(q, k, v, pairs, scale=scale, key_bias=key_bias, theta=theta, phi=phi, dropout=dropout)
    return out.flatten(1)


def by_the_formula(inputs: Inputs, context: GraphContext, num_heads: int, scale: float = 0.7) -> Tensor:
    """Query by query, differentiable; a query whose theta are all -inf gets 0."""
    qkv, key_bias, theta, phi = inputs
    q, k, v = qkv.unflatten(1, (3, num_heads, -1)).unbind(1)
    rows, pair = [], 0
    for start, end in zip(context.ptr.tolist(), context.ptr[1:].tolist(), strict=False):
        for i in range(start, end):
            for head in range(num_heads):
                pairs = slice(pair, pair + end - start)
                score = scale * k[start:end, head] @ q[i, head]
                score = score if key_bias is None else score + key_bias[start:end, head]
                score = score if theta is None else score + theta[head, pairs]
                weight = torch.zeros_like(score) if score.isneginf().all() else score.softmax(0)
                rows.append((weight if phi is None else weight * (1 + phi[head, pairs])) @ v[start:end, head])
            pair += end - start
    return torch.stack(rows).view(len(q), -1)


def gradients(out: Tensor, inputs: Inputs, cotangent: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(out, [x for x in inputs if x is not None], cotangent))


def leaves(inputs: Inputs, dtype: torch.dtype = torch.float64) -> Inputs:
    return tuple(x if x is None else x.detach().to(dtype).clone().requires_grad_() for x in inputs)


def assert_same(out: Tensor, expected: Tensor, inputs: Inputs, tolerance: float, grad_tolerance: float) -> None:
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    cotangent = torch.randn_like(out)
    grads = (gradients(result, inputs, cotangent) for result in (out, expected))
    torch.testing.assert_close(*grads, rtol=grad_tolerance, atol=grad_tolerance)


FORMS = [pytest.param(call, marks=needs_c, id="C loops"), pytest.param(plain, id="plain")]
FORMS.append(pytest.param(sparse, id="pair list"))


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("form", FORMS)
def test_outputs_and_gradients_equal_the_formula(form: Callable[..., Tensor], parts: str) -> None:
    context = context_of(SIZES)
    for num_heads, dim in ((2, 3), (1, 5)):
        inputs = leaves(numbers(context, num_heads, dim, parts))
        outputs = form(inputs, context, num_heads), by_the_formula(inputs, context, num_heads)
        assert_same(*outputs, inputs, 1e-12, 1e-11)


@needs_c
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-11), pytest.param(torch.float32, 2e-4, marks=pytest.mark.thorough)],
)
@pytest.mark.parametrize("parts", [PARTS[0], "theta", "phi", ""])
def test_the_c_loops_equal_the_plain_form_on_graphs_of_more_than_a_tile(
    parts: str, dtype: torch.dtype, tolerance: float
) -> None:
    context = context_of([0, 1, 33, 530])
    exact = leaves(numbers(context, 2, 5, parts))
    inputs = leaves(exact, dtype)
    out, expected = call(inputs, context, 2), plain(exact, context, 2)
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    cotangent = torch.randn_like(out)
    grads = [grad.double() for grad in gradients(out, inputs, cotangent)]
    expected_grads = gradients(expected, exact, cotangent.double())
    torch.testing.assert_close(grads, expected_grads, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("form", FORMS)
def test_scores_of_many_thousands_keep_their_precision(form: Callable[..., Tensor]) -> None:
    context = context_of([6, 1])
    inputs = leaves(numbers(context, 2, 3, size=100.0))  # scores of 1e4
    assert_same(form(inputs, context, 2), by_the_formula(inputs, context, 2), inputs, 1e-9, 1e-7)


@pytest.mark.parametrize("form", FORMS)
def test_minus_infinity_removes_a_pair_and_a_query_without_pairs_gets_zero(form: Callable[..., Tensor]) -> None:
    context = context_of([4, 3])
    inputs = leaves(numbers(context, 1, 3))
    with torch.no_grad():
        inputs[2][0, [1, 8, 9, 10, 11, 16]] = -torch.inf  # all pairs of node 2, and two others
    out, expected = form(inputs, context, 1), by_the_formula(inputs, context, 1)
    assert (out[2] == 0).all()
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    grads = gradients(out, inputs, torch.ones_like(out))
    assert all(grad.isfinite().all() for grad in grads)
    removed = inputs[2] == -torch.inf
    assert (grads[2][removed].abs() < 1e-300).all()
    assert (grads[2][~removed].abs() > 1e-12).all()
    assert (grads[0][2, :3].abs() < 1e-300).all()


@needs_c
def test_removed_pairs_that_fill_the_first_tile_count_nowhere() -> None:
    context = context_of([600])
    inputs = leaves(numbers(context, 1, 2))
    with torch.no_grad():
        inputs[2][0, : 600 * 100] = -torch.inf
        inputs[2][0, 600 * 100 - 7 : 600 * 100] = 0.0  # the last keys of query 99, in the second tile
    out, expected = call(inputs, context, 1), plain(inputs, context, 1)
    torch.testing.assert_close(out, expected, rtol=1e-11, atol=1e-11)
    assert (out[:99] == 0).all()
    assert (out[99] != 0).all()


def test_gradients_equal_finite_differences_with_the_same_weights_dropped() -> None:
    context = context_of([3, 0, 1, 4])

    def run(*inputs: Tensor) -> Tensor:
        torch.manual_seed(3)
        return call(inputs, context, 2, 0.4)

    assert torch.autograd.gradcheck(run, leaves(numbers(context, 2, 2)), fast_mode=True)


@pytest.mark.parametrize("form", [call, plain, sparse])
def test_dropout_follows_from_the_generator_and_keeps_the_mean(form: Callable[..., Tensor]) -> None:
    context = context_of([6, 2])
    inputs = numbers(context, 2, 3)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(form(inputs, context, 2, 0.5))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    draws = torch.stack([form(inputs, context, 2, 0.5) for _ in range(500)])
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - form(inputs, context, 2)).abs() < 5 * error).all()


@needs_c
def test_results_do_not_depend_on_the_number_of_threads() -> None:
    context, before, results = context_of([5, 33, 0, 400]), torch.get_num_threads(), []
    inputs = leaves(numbers(context, 2, 4), torch.float32)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        out = call(inputs, context, 2, 0.2)
        results.append([out, *gradients(out.square().sum(), inputs, torch.ones(()))])
    torch.set_num_threads(before)
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.cuda
@pytest.mark.parametrize("parts", PARTS)
def test_a_gpu_gives_the_same_outputs_and_gradients(parts: str) -> None:
    context = context_of(SIZES)
    exact = leaves(numbers(context, 2, 4, parts))
    inputs = tuple(x if x is None else x.detach().float().cuda().requires_grad_() for x in exact)
    out = call(inputs, GraphContext(context.batch.cuda(), context.ptr.cuda()), 2)
    expected = plain(exact, context, 2)
    cotangent = torch.randn_like(expected)
    torch.testing.assert_close(out.cpu().double(), expected, rtol=1e-4, atol=1e-4)
    grads = [grad.cpu().double() for grad in gradients(out, inputs, cotangent.float().cuda())]
    torch.testing.assert_close(grads, gradients(expected, exact, cotangent), rtol=1e-3, atol=1e-3)


@needs_c
def test_no_tensor_of_the_size_of_padded_pairs_is_made() -> None:
    context = context_of([300, *[2] * 50])  # padded: 51 * 300 * 300 pairs
    inputs = leaves(numbers(context, 2, 4), torch.float32)
    assert largest_tensor(lambda: call(inputs, context, 2, 0.1)) <= 2 * context.num_pairs


@needs_c
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", range(4))
def test_what_is_not_finite_stays_visible_in_its_graph(place: int, bad: float) -> None:
    context = context_of([4, 5])
    inputs = numbers(context, 1, 3)
    inputs[place].flatten()[0] = bad  # of the first graph
    out = call(inputs, context, 1)
    assert not out[:4].isfinite().all()
    assert out[4:].isfinite().all()


def test_wrong_shapes_are_one_clear_line() -> None:
    context = context_of([3, 2])
    qkv, key_bias, theta, phi = numbers(context, 2, 3)
    with pytest.raises(ValueError, match=r"theta must have shape \(2, 13\), got \(2, 12\)"):
        call((qkv, key_bias, theta[:, 1:], phi), context, 2)
    with pytest.raises(ValueError, match=r"key_bias must have shape \(5, 2\), got \(2, 5\)"):
        call((qkv, key_bias.T, theta, phi), context, 2)
    with pytest.raises(ValueError, match="ptr must increase"):
        call((qkv, None, None, None), GraphContext(context.batch, torch.tensor([0, 3, 6])), 2)
