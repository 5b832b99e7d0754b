"""A more diverse choice of keys: against a greedy choice by hand, and the laws of k-MIP attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from graphgps_kmip.attention import GraphContext, KMIPAttention, kmip
from graphgps_kmip.attention.kmip import build_kmip, diverse_keys
from graphgps_kmip.compat.public_faults import repeat_faults

SIZES = [5, 0, 1, 20]  # the second graph has no node
PTR = torch.tensor([0, *SIZES]).cumsum(0)
CONTEXT = GraphContext(torch.repeat_interleave(PTR.diff()), PTR)
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def layer(**options: Any) -> KMIPAttention:
    torch.manual_seed(3)
    return build_kmip(8, 2, **{"k": 4, "diversity": 2.0, **options}).double()


def nodes(size: int = 26) -> Tensor:
    return torch.randn(size, 8, dtype=torch.float64)


def greedy(logit: Tensor, keys: Tensor, num_keys: int, weight: float) -> list[int]:
    """One query: candidates one after the other, each time that of the largest value."""
    taken: list[int] = []
    while len(taken) < min(num_keys, len(keys)):
        values = {}
        for j in set(range(len(keys))) - set(taken):
            near = max([0.0] + [float(cosine_similarity(keys[i], keys[j], dim=0)) for i in taken])
            values[j] = logit[j].item() - weight * near
        taken.append(max(values, key=values.__getitem__))
    return taken


@pytest.mark.parametrize("weight", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("entries", [1, kmip.CHUNK_ENTRIES])
def test_the_keys_are_those_of_a_greedy_choice(weight: float, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmip, "CHUNK_ENTRIES", entries)
    k, q = torch.randn(2, 9, 3), torch.randn(2, 6, 3)
    score, index = (q @ k.mT).topk(7)
    index[:, 2, 4:], score[:, 2, 4:] = -1, -torch.inf  # a query with four candidates
    chosen, scores = diverse_keys(index, score, k, 5, weight)
    for head in range(2):
        for query in range(6):
            real = index[head, query][index[head, query] >= 0]
            taken = greedy(score[head, query] / 3**0.5, k[head, real], 5, weight)
            expected = [*real[taken].tolist(), *[-1] * (5 - len(taken))]
            assert chosen[head, query].tolist() == expected
            assert scores[head, query, : len(taken)].tolist() == score[head, query, taken].tolist()
            assert (scores[head, query, len(taken) :] == -torch.inf).all()


def test_it_attends_to_the_chosen_keys_among_twice_as_many_candidates() -> None:
    attention, x = layer(), nodes()
    q, key, v = (linear(x).unflatten(1, (2, -1)) for linear in (attention.query, attention.key, attention.value))
    expected = []
    for node in range(26):
        own = (CONTEXT.batch == CONTEXT.batch[node]).nonzero().squeeze(1)
        for head in range(2):
            logit = key[own, head] @ q[node, head] / 2
            best = own[logit.topk(min(8, len(own))).indices]
            taken = best[greedy(key[best, head] @ q[node, head] / 2, key[best, head].detach(), 4, 2.0)]
            expected.append((key[taken, head] @ q[node, head] / 2).softmax(0) @ v[taken, head])
    torch.testing.assert_close(attention(x, CONTEXT), torch.stack(expected).view(26, 8), **EXACT)


def test_without_weight_it_is_kmip_and_with_it_other_keys_are_taken() -> None:
    plain, x = KMIPAttention(8, 2, k=4).double(), nodes()
    found = {}
    for weight in (0.0, 1e-300, 2.0):
        attention = layer(diversity=weight)
        plain.load_state_dict(attention.state_dict())
        found[weight] = (attention(x, CONTEXT) - plain(x, CONTEXT)).abs().max()
    assert found[0.0] == 0
    assert found[1e-300] < 1e-12
    assert found[2.0] > 1e-3


def test_missing_slots_of_diverse_keys_can_be_filled_with_the_first_key() -> None:
    repeated = {"gt.kmip.repeat_first_key": True}
    filled, x = repeat_faults(layer(k=7), repeated), nodes(5)
    plain = repeat_faults(build_kmip(8, 2, k=7), repeated).double()
    plain.load_state_dict(filled.state_dict())
    torch.testing.assert_close(filled(x), plain(x), **EXACT)  # five keys are all taken: the rest is the first one
    assert (filled(x) - layer(k=7)(x)).abs().max() > 1e-3


def test_copies_of_a_key_give_way_to_another_one() -> None:
    k = torch.tensor([[[2.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 1.5]]])
    score, index = torch.tensor([[[2.0, 2.0, 1.5, 1.0]]]), torch.tensor([[[0, 1, 3, 2]]])
    assert diverse_keys(index, score, k, 2, 1.0)[0].tolist() == [[[0, 3]]]
    assert diverse_keys(index, score, k, 2, 0.1)[0].tolist() == [[[0, 1]]]


@pytest.mark.parametrize("sizes", [[1], [0], [], [1, 1], [0, 3, 2]])
def test_graphs_of_any_size_give_finite_outputs_and_gradients(sizes: list[int]) -> None:
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    x = nodes(int(ptr[-1])).requires_grad_()
    out = layer()(x, GraphContext(torch.repeat_interleave(ptr.diff()), ptr))
    assert out.shape == x.shape
    out.square().sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()


def test_a_graph_alone_gives_the_same_output_as_in_a_batch_and_nodes_may_be_permuted() -> None:
    attention, x = layer(), nodes()
    out = attention(x, CONTEXT)
    alone = [attention(graph) for graph in x.split(SIZES)]
    torch.testing.assert_close(torch.cat(alone), out, **EXACT)
    order = torch.cat([start + torch.randperm(size) for start, size in zip(PTR, SIZES, strict=False)])
    torch.testing.assert_close(attention(x[order], CONTEXT), out[order], **EXACT)


def test_gradients_equal_finite_differences_and_bfloat16_is_finite() -> None:
    attention, x = layer(k=2), nodes(6).requires_grad_()
    given = x, *attention.parameters()
    assert torch.autograd.gradcheck(lambda x, *_: attention(x), given, fast_mode=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention.float()(x.float())
    assert out.dtype == torch.bfloat16
    assert out.isfinite().all()


def test_cosines_are_not_rounded_under_autocast() -> None:
    k = torch.tensor([[[1.0, 0.0], [1.0, 0.01], [1.0, 0.02]]])
    score, index = torch.zeros(1, 1, 3), torch.arange(3).view(1, 1, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert diverse_keys(index, score, k, 2, 1.0)[0].tolist() == [[[0, 2]]]


def test_with_all_keys_taken_it_is_kmip() -> None:
    plain, attention, x = KMIPAttention(8, 2, k=20).double(), layer(k=20), nodes()
    plain.load_state_dict(attention.state_dict())
    torch.testing.assert_close(attention(x, CONTEXT), plain(x, CONTEXT), **EXACT)


@pytest.mark.parametrize("weight", [-0.5, float("inf"), float("nan")])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match=f"diversity must be 0 or more, and finite, got {weight}"):
        layer(diversity=weight)
