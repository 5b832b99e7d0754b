"""k-MIP attention over keys that are drawn at random: the draw, and a brute force over what was drawn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import GraphContext, KMIPAttention
from graphgps_kmip.attention.kmip import build_kmip, draw_keys
from graphgps_kmip.model.gradient_checkpointing import recomputed

PTR = torch.tensor([0, 5, 5, 6, 26])  # the second graph has no node
CONTEXT = GraphContext(torch.repeat_interleave(PTR.diff()), PTR)
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def layer(**options: Any) -> KMIPAttention:
    return build_kmip(8, 2, random_attention=True, **options).double()


def nodes() -> Tensor:
    return torch.randn(26, 8, dtype=torch.float64)


@pytest.mark.parametrize(
    ("fraction", "counts"), [(0.1, [1, 0, 1, 2]), (0.5, [2, 0, 1, 10]), (0.99, [4, 0, 1, 19]), (1.0, [5, 0, 1, 20])]
)
def test_a_share_of_each_graphs_nodes_is_drawn_without_repetition(fraction: float, counts: list[int]) -> None:
    drawn, ptr = draw_keys(CONTEXT, 3, fraction)
    assert ptr.diff().tolist() == counts
    for head in drawn:
        for graph, keys in enumerate(head.split(counts)):
            assert len(keys.unique()) == counts[graph]
            assert (CONTEXT.batch[keys] == graph).all()


def test_every_node_is_drawn_as_often_in_every_head() -> None:
    often, alike = torch.zeros(2, 26), 0
    for _ in range(1000):
        drawn = draw_keys(CONTEXT, 2, 0.5)[0]
        alike += torch.equal(*drawn.sort(dim=1).values)
        for head, keys in enumerate(drawn):
            often[head, keys] += 1
    assert alike < 10  # heads draw apart: one in 10 * 184756 is alike
    expected = torch.tensor([0.4] * 5 + [1.0] + [0.5] * 20).expand(2, -1)
    torch.testing.assert_close(often / 1000, expected, rtol=0, atol=0.08)  # five standard deviations


@pytest.mark.parametrize("k", [1, 3, 50])
def test_it_attends_to_the_best_of_the_drawn_keys(k: int) -> None:
    attention, x = layer(k=k, random_fraction=0.3), nodes()
    torch.manual_seed(7)
    out = attention(x, CONTEXT)
    torch.manual_seed(7)
    drawn, _ = draw_keys(CONTEXT, 2, 0.3)
    q, key, v = (linear(x).unflatten(1, (2, -1)) for linear in (attention.query, attention.key, attention.value))
    expected = torch.zeros(26, 2, 4, dtype=torch.float64)
    for node, head in torch.cartesian_prod(torch.arange(26), torch.arange(2)).tolist():
        own = [key for key in drawn[head].tolist() if CONTEXT.batch[key] == CONTEXT.batch[node]]
        scores = sorted((((q[node, head] @ key[j, head]).item(), j) for j in own), reverse=True)[:k]
        taken = [j for _, j in scores]
        weight = (key[taken, head] @ q[node, head] / 2).softmax(0)
        expected[node, head] = weight @ v[taken, head]
    torch.testing.assert_close(out, expected.flatten(1), **EXACT)


def test_the_learned_graph_has_empty_slots_where_fewer_are_drawn() -> None:
    graph = layer(k=4, random_fraction=0.3).attention_graph(nodes(), CONTEXT)
    counts = torch.tensor([1] * 6 + [4] * 20).expand(2, -1)  # 0.3 of 5, of 1 and of 20 nodes, at most k
    assert torch.equal((graph.index >= 0).sum(-1), counts)
    assert torch.equal(graph.weight > 0, graph.index >= 0)


def test_a_seed_repeats_it_and_every_call_draws_anew_in_eval_mode_too() -> None:
    attention, x = layer(k=2, random_fraction=0.3).eval(), nodes()
    torch.manual_seed(0)
    first, second = attention(x, CONTEXT), attention(x, CONTEXT)
    torch.manual_seed(0)
    assert torch.equal(attention(x, CONTEXT), first)
    assert not torch.equal(second, first)


def test_all_keys_drawn_is_kmip() -> None:
    plain, attention, x = KMIPAttention(8, 2, k=3).double(), layer(k=3, random_fraction=1.0), nodes()
    plain.load_state_dict(attention.state_dict())
    torch.testing.assert_close(attention(x, CONTEXT), plain(x, CONTEXT), **EXACT)


def test_it_is_off_by_default_and_draws_nothing_then() -> None:
    attention, x = KMIPAttention(8, 2).double(), nodes()
    before = torch.random.get_rng_state()
    attention(x, CONTEXT)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("diversity", [0.0, 2.0])
def test_computed_again_in_the_backward_pass_it_has_the_same_keys(diversity: float) -> None:
    attention, x = layer(k=3, random_fraction=0.5, diversity=diversity), nodes()
    gradients = []
    for call in (recomputed, lambda module, *args: module(*args)):
        torch.manual_seed(0)
        given = x.clone().requires_grad_()
        call(attention, given, CONTEXT).square().sum().backward()
        gradients.append(given.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


@pytest.mark.parametrize("sizes", [[1], [0], [], [1, 1], [0, 3, 2]])
def test_graphs_of_any_size_give_finite_outputs_and_gradients(sizes: list[int]) -> None:
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    x = nodes()[: ptr[-1]].requires_grad_()
    out = layer(k=3)(x, GraphContext(torch.repeat_interleave(ptr.diff()), ptr))
    assert out.shape == x.shape
    out.square().sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1])
def test_a_share_that_is_none_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match=rf"random_fraction must be in \(0, 1\], got {fraction}"):
        layer(random_fraction=fraction)
