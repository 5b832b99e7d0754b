"""GRIT's operator against sums written as loops, its derivatives, and its first state; batch norms of rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import GraphContext, GRITAttention, grit_operator
from graphgps_kmip.attention.grit import PairUpdate, first_pairs, node_degrees
from graphgps_kmip.attention.grit_operator import PairFeatures, PairMaps, PairSettings, grit_attention, signed_root
from graphgps_kmip.common.node_pairs import all_pairs
from graphgps_kmip.common.row_layers import RowBatchNorm, row_norms
from graphgps_kmip.errors import InputError

DIM, HEADS = 6, 2
ROUNDING = {"rtol": 1e-10, "atol": 1e-10}  # float64 sums in another order
SIZES = {"graphs": [4, 1, 0, 6], "one node": [1], "empty graphs": [0, 0], "no graphs": []}


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def arguments(sizes: list[int], scaled: bool = True, mapped: bool = True) -> tuple[list[Tensor | None], Tensor]:
    """Return q, k, v, pair features, scale, shift, five weights, and the boundaries of graphs of these sizes."""
    torch.manual_seed(3)
    nodes, pairs = sum(sizes), sum(size**2 for size in sizes)
    tensors = [random(nodes, DIM) for _ in range(3)] + [random(pairs, DIM)]
    tensors += [random(DIM), random(DIM)] if scaled else [None, None]
    tensors += [random(2 * DIM, DIM), random(2 * DIM), random(DIM)]
    tensors += [random(DIM, DIM), random(DIM)] if mapped else [None, None]
    return tensors, torch.tensor([0, *sizes]).cumsum(0)


def call(
    tensors: list[Tensor | None], ptr: Tensor, index: Tensor | None, settings: PairSettings, **options: Any
) -> Any:
    q, k, v, value, scale, shift, *maps = tensors
    pairs = PairFeatures(value, index, scale, shift)
    return grit_attention(q, k, v, pairs, ptr, PairMaps(*maps), settings, **options)


def results(
    tensors: list[Tensor | None], ptr: Tensor, index: Tensor | None, *args: Any, **options: Any
) -> list[Tensor]:
    """Return the outputs and the gradients of all inputs, with one dropout mask for both forms."""
    torch.manual_seed(5)
    outputs = [one for one in call(tensors, ptr, index, *args, **options) if one is not None]
    torch.manual_seed(7)
    loss = sum((one * torch.randn_like(one)).sum() for one in outputs)
    inputs = [one for one in tensors if one is not None]
    return [*outputs, *torch.autograd.grad(loss, inputs, materialize_grads=True)]


@pytest.mark.parametrize("clamp", [1.0, None])
def test_the_operator_is_its_formula(clamp: float | None) -> None:
    tensors, ptr = arguments(SIZES["graphs"])
    q, k, v, value, scale, shift, edge, edge_bias, logit, out, out_bias = (one.detach() for one in tensors)
    found = call(tensors, ptr, None, PairSettings(HEADS, clamp))
    width, pairs, clamped = DIM // HEADS, all_pairs(ptr), 0
    for i in range(len(q)):
        rows = [row for row in range(pairs.size(1)) if pairs[0, row] == i]
        e = [value[row] * scale + shift for row in rows]
        scores, keys = [], [int(pairs[1, row]) for row in rows]
        for features, j in zip(e, keys, strict=True):
            product = (q[i] + k[j]) * (edge[:DIM] @ features + edge_bias[:DIM])
            root = torch.tensor([math.copysign(math.sqrt(abs(x)), x) for x in product.tolist()], dtype=q.dtype)
            scores.append((root + edge[DIM:] @ features + edge_bias[DIM:]).clamp(min=0))
        for row, features, s in zip(rows, e, scores, strict=True):
            torch.testing.assert_close(found[2][row], features + out @ s + out_bias, **ROUNDING)
        for head in range(HEADS):
            at = slice(head * width, (head + 1) * width)
            z = [float(logit[at] @ s[at]) for s in scores]
            clamped += sum(clamp is not None and abs(one) > clamp for one in z)
            z = z if clamp is None else [max(-clamp, min(clamp, one)) for one in z]
            weight = [math.exp(one) / sum(map(math.exp, z)) for one in z]
            attended = sum(w * v[j][at] for w, j in zip(weight, keys, strict=True))
            rows_sum = sum(w * s[at] for w, s in zip(weight, scores, strict=True))
            torch.testing.assert_close(found[0][i, at], attended, **ROUNDING)
            torch.testing.assert_close(found[1][i, at], rows_sum, **ROUNDING)
    assert (clamped > 0) == (clamp is not None)


@pytest.mark.parametrize("entries", [1, 2**19], ids=["query by query", "whole graphs"])
@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize(
    ("scaled", "relu", "dropout", "update"), [(1, 1, 0, 1), (0, 1, 0.4, 1), (1, 0, 0.4, 0), (0, 0, 0, 0)]
)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_chunks_of_complete_pairs_give_outputs_and_gradients_of_the_plain_form(
    sizes: list[int], scaled: int, relu: int, dropout: float, update: int, mapped: bool, entries: int, monkeypatch: Any
) -> None:
    monkeypatch.setitem(grit_operator.CHUNK_ENTRIES, "cpu", entries)
    tensors, ptr = arguments(sizes, bool(scaled), mapped)
    settings = PairSettings(HEADS, 1.5, bool(relu), dropout, dropout)
    before = [None if one is None else one.detach().clone() for one in tensors]
    both = [results(tensors, ptr, index, settings, update_pairs=bool(update)) for index in (None, all_pairs(ptr))]
    for found, expected in zip(*both, strict=True):
        torch.testing.assert_close(found, expected, **ROUNDING)
    assert all(one is None or torch.equal(one, copy) for one, copy in zip(tensors, before, strict=True))


@pytest.mark.parametrize("complete", [True, False])
def test_derivatives_equal_finite_differences(complete: bool) -> None:
    tensors, ptr = arguments([2, 1])
    index = None if complete else all_pairs(ptr)[:, [4, 0, 3, 3]]
    if not complete:
        tensors[3] = random(4, DIM)

    def output(*given: Tensor) -> tuple[Tensor, ...]:
        return call(list(given), ptr, index, PairSettings(HEADS, 2.0))

    assert torch.autograd.gradcheck(output, tensors, fast_mode=True)


def test_the_signed_root_has_derivative_zero_at_zero_and_an_unbounded_one_near_it() -> None:
    x = torch.tensor([-4.0, -1e-8, 0.0, 1e-8, 4.0], dtype=torch.float64, requires_grad=True)
    [slope] = torch.autograd.grad(signed_root(x).sum(), x, create_graph=True)
    torch.testing.assert_close(slope, torch.tensor([0.25, 5e3, 0.0, 5e3, 0.25], dtype=torch.float64))
    [curvature] = torch.autograd.grad(slope.sum(), x)
    assert curvature.isfinite().all()
    assert curvature[2] == 0


@pytest.mark.parametrize("complete", [True, False])
def test_scores_of_zero_have_finite_gradients(complete: bool) -> None:
    tensors, ptr = arguments([3])
    tensors[0], tensors[1] = (torch.zeros_like(one).requires_grad_() for one in tensors[:2])
    found = results(tensors, ptr, None if complete else all_pairs(ptr), PairSettings(HEADS))
    assert all(one.isfinite().all() for one in found)
    assert not found[3].any()  # that of q: all products are 0


def test_a_query_without_pairs_has_zeros_and_a_pair_given_twice_counts_twice() -> None:
    tensors, ptr = arguments([3])
    value, index = tensors[3], torch.tensor([[0, 0, 0], [1, 2, 2]])
    tensors[3] = value[[0, 1, 1]]
    out, rows, _ = call(tensors, ptr, index, PairSettings(HEADS))
    assert not out[1:].any()
    assert not rows[1:].any()
    tensors[3] = value[[0, 1]]
    once = call(tensors, ptr, index[:, :2], PairSettings(HEADS))[0]
    assert not torch.equal(out, once)


@pytest.mark.parametrize("rows", [2, 50])
@pytest.mark.parametrize("running", [True, False])
def test_batch_norm_of_rows_is_that_of_torch(rows: int, running: bool) -> None:
    ours, theirs = (
        RowBatchNorm(DIM, 0.3, running).double(),
        nn.BatchNorm1d(DIM, momentum=0.3, track_running_stats=running),
    )
    theirs = theirs.double()
    with torch.no_grad():
        ours.weight.normal_()
        ours.bias.normal_()
    theirs.load_state_dict(ours.state_dict())
    x = random(rows, DIM)
    for training in (True, True, False):
        outputs = [norm.train(training)(x) for norm in (ours, theirs)]
        grads = [
            torch.autograd.grad(one.pow(3).sum(), [x, *norm.parameters()])
            for one, norm in zip(outputs, (ours, theirs), strict=True)
        ]
        torch.testing.assert_close(*outputs, **ROUNDING)
        torch.testing.assert_close(*grads, **ROUNDING)
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), **ROUNDING)
    ours.train()


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("running", [True, False])
def test_batch_norm_of_one_row_or_none_is_finite_and_leaves_the_statistics(rows: int, running: bool) -> None:
    norm = RowBatchNorm(DIM, running=running).double()
    state = {name: value.clone() for name, value in norm.state_dict().items()}
    x = random(rows, DIM)
    norm(x).sum().backward()
    assert x.grad.isfinite().all()
    torch.testing.assert_close(dict(norm.state_dict()), state, rtol=0, atol=0)


def graphs() -> GraphContext:
    """Two graphs, of 3 and of 2 nodes; the edges 0 -> 1 and 4 -> 3."""
    batch, ptr = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 3, 5])
    edges = torch.tensor([[0, 4], [1, 3]])
    return GraphContext(batch, ptr, edges, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))


def test_edge_features_are_added_to_the_pair_whose_query_is_the_target() -> None:
    pairs = first_pairs(graphs(), torch.zeros(4, 2))
    expected = torch.zeros(13, 2)
    expected[3], expected[10] = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])  # (1, 0) and (3, 4)
    assert pairs.index is None
    torch.testing.assert_close(pairs.value, expected)


def test_a_list_of_pairs_gets_those_of_the_edges_and_each_node_with_itself() -> None:
    context = graphs()
    listed = GraphContext(
        context.batch, context.ptr, context.edge_index, context.edge_attr,
        pair_index=torch.tensor([[2, 1], [0, 0]]), pair_attr=torch.tensor([[5.0, 6.0], [7.0, 8.0]]),
    )  # fmt: skip
    pairs = first_pairs(listed, torch.zeros(4, 2))
    found = {tuple(pair): value for pair, value in zip(pairs.index.T.tolist(), pairs.value.tolist(), strict=True)}
    nodes = {(n, n): [0.0, 0.0] for n in range(5)}
    assert found == nodes | {(2, 0): [5.0, 6.0], (1, 0): [8.0, 10.0], (3, 4): [3.0, 4.0]}


def test_degrees_are_those_of_the_encoding_or_the_number_of_edges_into_a_node() -> None:
    assert node_degrees(graphs()).tolist() == [0, 1, 0, 1, 0]
    counted = GraphContext(graphs().batch, graphs().ptr, degree=torch.tensor([2, 1, 1, 1, 1]))
    assert node_degrees(counted).tolist() == [2, 1, 1, 1, 1]


def test_what_no_layer_reads_is_not_computed_in_eval_mode_and_has_its_statistics_in_training() -> None:
    attention = GRITAttention(DIM, HEADS, pairs=PairUpdate(DIM, update=False)).double()
    context = GraphContext(torch.zeros(3, dtype=torch.long), torch.tensor([0, 3]), pair_attr=random(9, DIM))
    state = attention.initial_state(context)
    norm = attention.pairs.norm[0]
    assert attention.eval()(random(3, DIM), context, state)[1].pairs is state.pairs
    assert norm.num_batches_tracked == 0
    assert attention.train()(random(3, DIM), context, state)[1].pairs is state.pairs
    assert norm.num_batches_tracked == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [({"act": "tanh"}, "gt.grit.act"), ({"clamp": -1.0}, "gt.grit.clamp"), ({"dropout": 1.0}, "dropout")],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        GRITAttention(DIM, HEADS, **options)


def test_pair_features_of_another_width_are_refused() -> None:
    context = GraphContext(torch.zeros(2, dtype=torch.long), torch.tensor([0, 2]), pair_attr=torch.zeros(4, 3))
    with pytest.raises(InputError, match=r"GRIT needs pair features \(P, 6\).*RRWP"):
        GRITAttention(DIM, HEADS)(torch.zeros(2, DIM), context)


def test_norms_of_rows_are_any_of_the_two() -> None:
    kinds = [
        [type(one) for one in row_norms(DIM, layer_norm=a, batch_norm=b)] for a in (False, True) for b in (False, True)
    ]
    assert kinds == [[], [RowBatchNorm], [nn.LayerNorm], [nn.LayerNorm, RowBatchNorm]]
