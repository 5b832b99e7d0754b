"""Full attention with a bias for pairs of nodes against the formula, and its laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import FullAttention, GraphContext
from graphgps_kmip.attention.full import BiasedFullAttention
from graphgps_kmip.testing.references import full_attention

DIM, HEADS = 8, 2
EXACT = {"rtol": 1e-12, "atol": 1e-12}
SIZES = [5, 0, 1, 7]  # the second graph has no node


def graphs(sizes: list[int], share: float = 1.0) -> tuple[Tensor, GraphContext]:
    """Random nodes, and a bias for a share of all pairs inside graphs, in random order."""
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    batch = torch.arange(len(sizes)).repeat_interleave(ptr.diff())
    pairs = (batch[:, None] == batch).nonzero().T  # (2, P)
    pairs = pairs[:, torch.randperm(pairs.size(1))[: round(share * pairs.size(1))]]
    context = GraphContext(batch, ptr, pair_index=pairs, pair_attr=3 * torch.randn(pairs.size(1), HEADS).double())
    return torch.randn(len(batch), DIM, dtype=torch.float64), context


def layer() -> BiasedFullAttention:
    attention = BiasedFullAttention(DIM, HEADS).double()
    nn.init.normal_(attention.attention.qkv.bias)
    return attention


def weights_by_the_formula(attention: BiasedFullAttention, x: Tensor, context: GraphContext) -> Tensor:
    """Score by score, over the nodes of all graphs: (H, N, N)."""
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
def test_it_equals_the_formula_in_each_graph(sizes: list[int], share: float) -> None:
    attention, (x, context) = layer(), graphs(sizes, share)
    again = replace(  # some pairs stand there twice
        context,
        pair_index=context.pair_index.repeat(1, 2)[:, :-3],
        pair_attr=context.pair_attr.repeat(2, 1)[:-3],
    )
    for given in (context, again):
        v = attention.attention.qkv(x).unflatten(1, (3, HEADS, -1))[:, 2]
        mixed = torch.einsum("hnm,mhd->nhd", weights_by_the_formula(attention, x, given), v)
        torch.testing.assert_close(attention(x, given), attention.attention.out(mixed.flatten(1)), **EXACT)


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


def test_a_graph_alone_gives_the_same_output_as_in_a_batch() -> None:
    attention, (x, context) = layer(), graphs(SIZES)
    alone = []
    for graph, (start, end) in enumerate(zip(context.ptr, context.ptr[1:], strict=False)):
        inside = context.batch[context.pair_index[0]] == graph
        one = GraphContext.of(None, x[start:end])
        one = replace(one, pair_index=context.pair_index[:, inside] - start, pair_attr=context.pair_attr[inside])
        alone.append(attention(x[start:end], one))
    torch.testing.assert_close(torch.cat(alone), attention(x, context), **EXACT)


def test_permuting_nodes_and_pairs_permutes_the_output() -> None:
    attention, (x, context) = layer(), graphs(SIZES)
    order = torch.cat([start + torch.randperm(size) for start, size in zip(context.ptr, context.sizes, strict=False)])
    pairs = torch.randperm(len(context.pair_attr))
    index = order.argsort()[context.pair_index[:, pairs]]
    shuffled = replace(context, pair_index=index, pair_attr=context.pair_attr[pairs])
    torch.testing.assert_close(attention(x[order], shuffled), attention(x, context)[order], **EXACT)


@pytest.mark.parametrize("sizes", [[3, 1, 2], [4]])
def test_gradients_to_inputs_biases_and_parameters_equal_finite_differences(sizes: list[int]) -> None:
    attention, (x, context) = layer(), graphs(sizes)

    def output(x: Tensor, bias: Tensor, *_: Tensor) -> Tensor:
        return attention(x, replace(context, pair_attr=bias))

    given = x.requires_grad_(), context.pair_attr.requires_grad_(), *attention.parameters()
    assert torch.autograd.gradcheck(output, given)
    output(*given).square().sum().backward()
    several = context.sizes[context.batch[context.pair_index[0]]] > 1  # a softmax over one key has no gradient
    assert (context.pair_attr.grad[several].abs() > 1e-12).all()


@pytest.mark.parametrize("sizes", [[1], [1, 1], [0], [], [2, 0, 3]])
def test_graphs_of_any_size_give_finite_outputs_and_gradients(sizes: list[int]) -> None:
    attention, (x, context) = layer(), graphs(sizes)
    out = attention(x.requires_grad_(), context)
    assert out.shape == x.shape
    out.square().sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("autocast", [False, True])
def test_float32_and_bfloat16_are_close_to_float64(autocast: bool) -> None:
    attention, (x, context) = layer(), graphs(SIZES)
    expected = attention(x, context)
    single = replace(context, pair_attr=context.pair_attr.float().requires_grad_())
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        out = attention.float()(x.float(), single)
    assert out.dtype == (torch.bfloat16 if autocast else torch.float32)
    tolerance = 0.1 if autocast else 1e-5  # bfloat16 has 8 bits, of which a bias of 9 leaves few
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    out.float().square().sum().backward()
    assert single.pair_attr.grad.isfinite().all()


def test_inputs_stay_as_they_are_and_eval_mode_repeats() -> None:
    attention, (x, context) = BiasedFullAttention(DIM, HEADS, dropout=0.5).double(), graphs(SIZES)
    tensors = x, context.pair_index, context.pair_attr, context.batch, context.ptr
    before = [tensor.clone() for tensor in tensors]
    assert not torch.equal(attention(x, context), attention(x, context))
    attention.eval()
    assert torch.equal(attention(x, context), attention(x, context))
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(tensors, before, strict=True))
    other = BiasedFullAttention(DIM, HEADS).double()
    other.load_state_dict(attention.state_dict())
    assert torch.equal(other(x, context), attention(x, context))


@pytest.mark.parametrize("missing", ["pair_index", "pair_attr"])
def test_data_without_biases_is_refused_with_the_key_that_makes_them(missing: str) -> None:
    attention, (x, context) = layer(), graphs(SIZES)
    with pytest.raises(ValueError, match="set posenc_GraphormerBias.enable True"):
        attention(x, replace(context, **{missing: None}))
    with pytest.raises(ValueError, match="set posenc_GraphormerBias.enable True"):
        attention.attention_graph(x, context.batch)


def test_biases_for_another_number_of_heads_are_refused() -> None:
    attention, (x, context) = layer(), graphs(SIZES)
    with pytest.raises(ValueError, match=r"has 2 heads \(gt.n_heads\), but the bias of pairs has shape \(75, 1\)"):
        attention(x, replace(context, pair_attr=context.pair_attr[:, :1]))
