"""Full attention, plain, with biases of pairs and as fused C loops, against the formula and torch."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import FullAttention, GraphContext, full
from graphgps_kmip.attention.full import BiasedFullAttention, can_run
from graphgps_kmip.attention.full import full_attention as fused_full_attention
from graphgps_kmip.ops.native import unavailable_reason
from graphgps_kmip.testing.references import full_attention
from tests.attention.contexts import context_of
from tests.attention.largest import largest_tensor
from tests.native.vector_units import VECTOR_UNITS


@pytest.mark.parametrize(("sizes", "masked"), [([3, 3], False), ([6], False), ([2, 4], True)])
def test_a_mask_is_built_only_where_something_is_padded(
    sizes: list[int], masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full, "can_run", lambda *_: False)  # as on a GPU
    masks = []

    def record(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: object, dropout: float) -> torch.Tensor:
        masks.append(mask)
        return q + k + v + dropout

    monkeypatch.setattr(full, "scaled_dot_product_attention", record)
    FullAttention(8, 2)(torch.randn(6, 8), torch.repeat_interleave(torch.tensor(sizes)))
    assert [mask is not None for mask in masks] == [masked]


DIM, HEADS = 8, 2
EXACT = {"rtol": 1e-12, "atol": 1e-12}
SIZES = [5, 0, 1, 7]  # the second graph has no node


def graphs(sizes: list[int], share: float = 1.0) -> tuple[Tensor, GraphContext]:
    """Random nodes, and a bias for a share of all pairs inside graphs, in random order."""
    batch = context_of(sizes).batch
    pairs = (batch[:, None] == batch).nonzero().T  # (2, P)
    pairs = pairs[:, torch.randperm(pairs.size(1))[: round(share * pairs.size(1))]]
    bias = 3 * torch.randn(pairs.size(1), HEADS).double()
    return torch.randn(len(batch), DIM, dtype=torch.float64), context_of(sizes, pair_index=pairs, pair_attr=bias)


def layer() -> BiasedFullAttention:
    attention = BiasedFullAttention(DIM, HEADS).double()
    nn.init.normal_(attention.attention.qkv.bias)
    return attention


def weights_by_the_formula(attention: BiasedFullAttention, x: Tensor, context: GraphContext) -> Tensor:
    q, k, _ = attention.attention.qkv(x).unflatten(1, (3, HEADS, -1)).unbind(1)
    score = torch.full((HEADS, len(x), len(x)), -torch.inf, dtype=torch.float64)
    for i, j in (context.batch[:, None] == context.batch).nonzero().tolist():
        for head in range(HEADS):
            score[head, i, j] = q[i, head] @ k[j, head] / (DIM / HEADS) ** 0.5
    for (i, j), bias in zip(context.pair_index.T.tolist(), context.pair_attr, strict=True):
        score[:, i, j] += bias
    return score.softmax(-1)


@pytest.mark.parametrize("sizes", [SIZES, [6], [4, 4]])
@pytest.mark.parametrize("share", [1.0, 0.6])
def test_with_biases_it_equals_the_formula_in_each_graph(sizes: list[int], share: float) -> None:
    attention, (x, context) = layer(), graphs(sizes, share)
    repeated = replace(  # some pairs are listed twice
        context,
        pair_index=context.pair_index.repeat(1, 2)[:, :-3],
        pair_attr=context.pair_attr.repeat(2, 1)[:-3],
    )
    for biased in (context, repeated):
        v = attention.attention.qkv(x).unflatten(1, (3, HEADS, -1))[:, 2]
        mixed = torch.einsum("hnm,mhd->nhd", weights_by_the_formula(attention, x, biased), v)
        torch.testing.assert_close(attention(x, biased), attention.attention.out(mixed.flatten(1)), **EXACT)


def test_the_learned_graph_has_the_weights_of_the_formula() -> None:
    attention, (x, context) = layer(), graphs(SIZES)
    graph = attention.attention_graph(x, context)
    dense = torch.zeros(HEADS, len(x), len(x), dtype=torch.float64)
    dense.scatter_add_(2, graph.index.clamp(min=0), graph.weight)
    torch.testing.assert_close(dense, weights_by_the_formula(attention, x, context), **EXACT)


def test_without_any_bias_it_is_full_attention_which_ignores_pairs() -> None:
    attention, (x, context) = layer(), graphs(SIZES)
    plain = FullAttention(DIM, HEADS).double()
    plain.load_state_dict(attention.attention.state_dict())
    unbiased = replace(context, pair_attr=torch.zeros_like(context.pair_attr))
    torch.testing.assert_close(attention(x, unbiased), plain(x, context), **EXACT)
    assert (attention(x, context) - plain(x, context)).abs().max() > 1e-2
    assert torch.equal(plain(x, context), plain(x, context.batch))
    q, k, v = plain.qkv(x).unflatten(1, (3, HEADS, -1)).unbind(1)
    expected = plain.out(full_attention(q, k, v, context.ptr.tolist()).flatten(1))
    torch.testing.assert_close(plain(x, context), expected, **EXACT)


@pytest.mark.parametrize("missing", ["pair_index", "pair_attr"])
def test_data_without_biases_is_refused_with_the_key_that_makes_them(missing: str) -> None:
    attention, (x, context) = layer(), graphs(SIZES)
    with pytest.raises(ValueError, match="set posenc_GraphormerBias.enable True"):
        attention(x, replace(context, **{missing: None}))
    with pytest.raises(ValueError, match="set posenc_GraphormerBias.enable True"):
        attention.attention_graph(x, context.batch)


needs_c = pytest.mark.skipif(unavailable_reason("full_attention") is not None, reason="no C compiler")


LONG = [5, 0, 1, 7, 60, 533, 594]  # no node, one node, few, a tile of 512 keys and more
FEW = context_of([5, 0, 1, 7])


def formula(qkv: Tensor, num_heads: int, context: GraphContext) -> Tensor:
    return full_attention(*qkv.unflatten(1, (3, num_heads, -1)).unbind(1), context.ptr.tolist()).flatten(1)


@needs_c
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("instruction_set", VECTOR_UNITS, indirect=True)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize(("num_heads", "dim"), [(1, 1), (2, 5), (3, 12), (1, 33)])
def test_output_and_gradient_equal_the_formula(num_heads: int, dim: int, dtype: torch.dtype, tolerance: float) -> None:
    qkv = torch.randn(1200, 3 * num_heads * dim, dtype=dtype).requires_grad_()
    exact = qkv.detach().double().requires_grad_()
    context = context_of(LONG)
    out, expected = fused_full_attention(qkv, context, num_heads), formula(exact, num_heads, context)
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    cotangent = torch.randn_like(out)
    out.backward(cotangent)
    expected.backward(cotangent.double())
    torch.testing.assert_close(qkv.grad.double(), exact.grad, rtol=tolerance, atol=tolerance)


@needs_c
def test_scores_of_any_size_keep_their_precision() -> None:
    qkv, context = 40 * torch.randn(300, 3 * 8, dtype=torch.float64), context_of([300])  # scores of some thousands
    out = fused_full_attention(qkv, context, 1)
    torch.testing.assert_close(out, formula(qkv, 1, context), rtol=1e-10, atol=1e-10)
    out = fused_full_attention(qkv.float(), context, 1)
    torch.testing.assert_close(out.double(), formula(qkv.float().double(), 1, context), rtol=1e-2, atol=1e-2)


@needs_c
def test_gradients_equal_finite_differences_with_the_same_weights_dropped() -> None:
    qkv = torch.randn(13, 3 * 2 * 2, dtype=torch.float64, requires_grad=True)

    def run(qkv: Tensor) -> Tensor:
        torch.manual_seed(3)
        return fused_full_attention(qkv, FEW, 2, 0.3)

    assert torch.autograd.gradcheck(run, qkv, fast_mode=True)


@needs_c
def test_a_share_of_the_weights_is_dropped_and_the_others_grow() -> None:
    num_nodes, dropout = 600, 0.25
    qkv = torch.zeros(num_nodes, 3 * num_nodes)  # weights are 1 / N, and values show them one by one
    qkv[:, 2 * num_nodes :] = torch.eye(num_nodes)
    weight = fused_full_attention(qkv, context_of([num_nodes]), 1, dropout) * num_nodes
    left = weight > 0
    torch.testing.assert_close(weight[left], torch.full_like(weight[left], 1 / (1 - dropout)))
    spread = (dropout * (1 - dropout)) ** 0.5
    assert abs(left.double().mean() - (1 - dropout)) < 4 * spread / num_nodes
    for means in (left.double().mean(0), left.double().mean(1)):  # neither keys nor queries are preferred
        assert means.std() < 1.3 * spread / num_nodes**0.5
        assert (means - (1 - dropout)).abs().max() < 5 * spread / num_nodes**0.5
    pairs = torch.corrcoef(left[:200].double())
    assert pairs.fill_diagonal_(0).abs().max() < 6 / num_nodes**0.5  # no two queries drop alike


@needs_c
def test_results_do_not_depend_on_the_number_of_threads() -> None:
    qkv, results = torch.randn(1200, 3 * 8, requires_grad=True), []
    before = torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        out = fused_full_attention(qkv, context_of(LONG), 2, 0.2)
        results.append((out, *torch.autograd.grad(out.square().sum(), qkv)))
    torch.set_num_threads(before)
    torch.testing.assert_close(*results, rtol=0, atol=0)


@needs_c
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_visible(bad: float) -> None:
    for channel in range(3):  # of the query, the key, the value
        qkv = torch.rand(20, 3)
        qkv[7, channel] = bad
        out = fused_full_attention(qkv, context_of([10, 10]), 1)
        assert not out[:10].isfinite().all()
        assert out[10:].isfinite().all()


@needs_c
def test_the_layer_takes_the_kernel_and_equals_the_padded_form(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, x = FullAttention(8, 2, 0.5).double().eval(), torch.randn(13, 8, dtype=torch.float64)
    with monkeypatch.context() as patch:
        patch.delattr(full, "scaled_dot_product_attention")
        fused = attention(x, FEW)
    monkeypatch.setattr(full, "can_run", lambda *_: False)
    torch.testing.assert_close(fused, attention(x, FEW), rtol=1e-12, atol=1e-12)


@needs_c
def test_memory_grows_with_the_nodes_even_with_dropout() -> None:
    attention = FullAttention(8, 2, 0.5)
    x = torch.randn(2000, 8)
    assert largest_tensor(lambda: attention(x)) <= 2000 * 3 * 8


@needs_c
def test_it_leaves_halves_and_single_heads_for_many_threads_to_torch() -> None:
    context = context_of([9])
    assert can_run(torch.randn(9, 6), context, torch.get_num_threads(), 0.0)
    assert not can_run(torch.randn(9, 6), context, torch.get_num_threads() - 1, 0.0)
    assert can_run(torch.randn(9, 6), context, torch.get_num_threads() - 1, 0.1)
    assert not can_run(torch.randn(9, 6).bfloat16(), context, 64, 0.0)


@needs_c
def test_what_fills_up_a_vector_counts_nowhere_even_where_its_exponential_overflows() -> None:
    qkv = torch.ones(13, 3).double()  # 13 keys fill no vector; after them the scores are 0, and weights 2^1024.2
    qkv[:, 0] = -1024.2 * math.log(2) - math.log(13)
    qkv[:, 2] = torch.randn(13)
    context, exact = context_of([13]), qkv.clone().requires_grad_()
    fused_full_attention(qkv.requires_grad_(), context, 1).square().sum().backward()
    formula(exact, 1, context).square().sum().backward()
    torch.testing.assert_close(qkv.grad, exact.grad, rtol=1e-9, atol=1e-9)
