"""The fused C loops of full attention against the formula: values, gradients, dropout, sizes, threads."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import FullAttention, GraphContext, full
from graphgps_kmip.attention.full import can_run, full_attention
from graphgps_kmip.native import unavailable_reason
from graphgps_kmip.testing.references import full_attention as by_the_formula
from tests.attention.largest import largest_tensor
from tests.native.vector_units import VECTOR_UNITS

pytestmark = pytest.mark.skipif(unavailable_reason("full_attention") is not None, reason="no C compiler")

PTR = torch.tensor([0, 5, 5, 6, 13, 73, 606, 1200])  # no node, one node, few, a tile of 512 keys and more


def context_of(ptr: Tensor) -> GraphContext:
    return GraphContext(torch.repeat_interleave(ptr.diff()), ptr)


def formula(qkv: Tensor, num_heads: int, ptr: Tensor = PTR) -> Tensor:
    return by_the_formula(*qkv.unflatten(1, (3, num_heads, -1)).unbind(1), ptr.tolist()).flatten(1)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("instruction_set", VECTOR_UNITS, indirect=True)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize(("num_heads", "dim"), [(1, 1), (2, 5), (3, 12), (1, 33)])
def test_output_and_gradient_equal_the_formula(num_heads: int, dim: int, dtype: torch.dtype, tolerance: float) -> None:
    qkv = torch.randn(1200, 3 * num_heads * dim, dtype=dtype).requires_grad_()
    exact = qkv.detach().double().requires_grad_()
    found, expected = full_attention(qkv, context_of(PTR), num_heads), formula(exact, num_heads)
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    cotangent = torch.randn_like(found)
    found.backward(cotangent)
    expected.backward(cotangent.double())
    torch.testing.assert_close(qkv.grad.double(), exact.grad, rtol=tolerance, atol=tolerance)


def test_scores_of_any_size_keep_their_precision() -> None:
    qkv = 40 * torch.randn(300, 3 * 8, dtype=torch.float64)  # scores of some thousands
    ptr = torch.tensor([0, 300])
    torch.testing.assert_close(full_attention(qkv, context_of(ptr), 1), formula(qkv, 1, ptr), rtol=1e-10, atol=1e-10)
    found = full_attention(qkv.float(), context_of(ptr), 1)
    torch.testing.assert_close(found.double(), formula(qkv.float().double(), 1, ptr), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_equal_finite_differences_with_the_same_weights_dropped(dropout: float) -> None:
    qkv = torch.randn(13, 3 * 2 * 2, dtype=torch.float64, requires_grad=True)
    ptr = torch.tensor([0, 5, 5, 6, 13])

    def run(qkv: Tensor) -> Tensor:
        torch.manual_seed(3)
        return full_attention(qkv, context_of(ptr), 2, dropout)

    assert torch.autograd.gradcheck(run, qkv)


def test_a_share_of_the_weights_is_dropped_and_the_others_grow() -> None:
    num_nodes, dropout = 600, 0.25
    qkv = torch.zeros(num_nodes, 3 * num_nodes)  # weights are 1 / N, and values show them one by one
    qkv[:, 2 * num_nodes :] = torch.eye(num_nodes)
    weight = full_attention(qkv, context_of(torch.tensor([0, num_nodes])), 1, dropout) * num_nodes
    kept = weight > 0
    torch.testing.assert_close(weight[kept], torch.full_like(weight[kept], 1 / (1 - dropout)))
    spread = (dropout * (1 - dropout)) ** 0.5
    assert abs(kept.double().mean() - (1 - dropout)) < 4 * spread / num_nodes
    for means in (kept.double().mean(0), kept.double().mean(1)):  # neither keys nor queries are preferred
        assert means.std() < 1.3 * spread / num_nodes**0.5
        assert (means - (1 - dropout)).abs().max() < 5 * spread / num_nodes**0.5
    pairs = torch.corrcoef(kept[:200].double())
    assert pairs.fill_diagonal_(0).abs().max() < 6 / num_nodes**0.5  # no two queries drop alike


def test_dropout_follows_from_the_generator_and_differs_between_heads_and_graphs() -> None:
    ptr = torch.tensor([0, 40, 80])
    qkv = torch.randn(40, 3, 1, 4).expand(40, 3, 2, 4).flatten(1).repeat(2, 1)  # both heads and graphs alike
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(full_attention(qkv, context_of(ptr), 2, 0.5))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    parts = outputs[0].unflatten(0, (2, 40)).unflatten(2, (2, 4)).permute(0, 2, 1, 3).flatten(0, 1)
    assert all(not torch.equal(parts[i], parts[j]) for i in range(4) for j in range(i))


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    qkv, results = torch.randn(1200, 3 * 8, requires_grad=True), []
    before = torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        out = full_attention(qkv, context_of(PTR), 2, 0.2)
        results.append((out, *torch.autograd.grad(out.square().sum(), qkv)))
    torch.set_num_threads(before)
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_visible(bad: float) -> None:
    for channel in range(3):  # of the query, the key, the value
        qkv = torch.rand(20, 3)
        qkv[7, channel] = bad
        out = full_attention(qkv, context_of(torch.tensor([0, 10, 20])), 1)
        assert not out[:10].isfinite().all()
        assert out[10:].isfinite().all()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_layer_takes_the_kernel_and_equals_the_padded_form(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = FullAttention(8, 2, dropout).double().eval()
    x, context = torch.randn(13, 8, dtype=torch.float64), context_of(torch.tensor([0, 5, 5, 6, 13]))
    with monkeypatch.context() as patch:
        patch.delattr(full, "scaled_dot_product_attention")
        found = attention(x, context)
    monkeypatch.setattr(full, "can_run", lambda *_: False)
    torch.testing.assert_close(found, attention(x, context), rtol=1e-12, atol=1e-12)


def test_memory_grows_with_the_nodes_even_with_dropout() -> None:
    attention = FullAttention(8, 2, 0.5)
    x = torch.randn(2000, 8)
    assert largest_tensor(lambda: attention(x)) <= 2000 * 3 * 8


def test_it_leaves_halves_and_single_heads_for_many_threads_to_torch() -> None:
    context = context_of(torch.tensor([0, 9]))
    assert can_run(torch.randn(9, 6), context, torch.get_num_threads(), 0.0)
    assert not can_run(torch.randn(9, 6), context, torch.get_num_threads() - 1, 0.0)
    assert can_run(torch.randn(9, 6), context, torch.get_num_threads() - 1, 0.1)
    assert not can_run(torch.randn(9, 6).bfloat16(), context, 64, 0.0)


def test_a_copied_layer_and_inputs_stay_as_they_are() -> None:
    qkv = torch.randn(1200, 12)
    before = copy.deepcopy(qkv)
    full_attention(qkv, context_of(PTR), 2, 0.5)
    assert torch.equal(qkv, before)


def test_what_fills_up_a_vector_counts_nowhere_even_where_its_exponential_overflows() -> None:
    qkv = torch.ones(13, 3).double()  # 13 keys fill no vector; behind them the scores are 0, and weights 2^1024.2
    qkv[:, 0] = -1024.2 * math.log(2) - math.log(13)
    qkv[:, 2] = torch.randn(13)
    ptr, exact = torch.tensor([0, 13]), qkv.clone().requires_grad_()
    full_attention(qkv.requires_grad_(), context_of(ptr), 1).square().sum().backward()
    formula(exact, 1, ptr).square().sum().backward()
    torch.testing.assert_close(qkv.grad, exact.grad, rtol=1e-9, atol=1e-9)
