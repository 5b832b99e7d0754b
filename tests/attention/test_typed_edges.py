"""The attention graph of the low-width method: which edges it has, of which kinds, in which order."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.exphormer import EXPANDER_EDGE, GRAPH_EDGE, SELF_LOOP, TypedEdgeStart, typed_edges


def context_of(sizes: list[int], edge_index: Tensor | None, expander: Tensor | None = None) -> GraphContext:
    batch = torch.repeat_interleave(torch.tensor(sizes, dtype=torch.long))
    ptr = torch.tensor([0, *torch.tensor(sizes, dtype=torch.long).cumsum(0).tolist()])
    sets = {} if expander is None else {"expander": (expander, None)}
    return GraphContext(batch, ptr, edge_index=edge_index, edge_sets=sets)


def counted(edges: Tensor) -> Counter[tuple[int, ...]]:
    return Counter(map(tuple, edges.T.tolist()))


def test_every_edge_is_there_as_often_as_it_was_given_with_its_kind() -> None:
    graph = torch.tensor([[0, 0, 1, 2, 2], [1, 1, 0, 0, 2]])
    expander = torch.tensor([[0, 2, 1, 1], [1, 1, 2, 2]])
    found = counted(typed_edges(context_of([3], graph, expander)))
    expected = Counter((*edge, GRAPH_EDGE) for edge in graph.T.tolist())
    expected += Counter((*edge, EXPANDER_EDGE) for edge in expander.T.tolist())
    assert found == expected + Counter((node, node, SELF_LOOP) for node in range(3))


def test_edges_are_sorted_by_target_and_in_the_given_order_within_one() -> None:
    graph, expander = torch.tensor([[2, 1, 0], [0, 0, 1]]), torch.tensor([[1, 2], [0, 0]])
    edges = typed_edges(context_of([3], graph, expander))
    assert edges.dtype == torch.int64
    assert edges[1].diff().min() >= 0
    into_0 = [(2, 0, GRAPH_EDGE), (1, 0, GRAPH_EDGE), (1, 0, EXPANDER_EDGE), (2, 0, EXPANDER_EDGE), (0, 0, SELF_LOOP)]
    assert list(map(tuple, edges[:, :5].T.tolist())) == into_0


@pytest.mark.parametrize("sizes", [[1], [2, 3], [0, 2], []])
def test_graphs_without_edges_have_self_loops(sizes: list[int]) -> None:
    nodes = sum(sizes)
    for edge_index in (None, torch.empty(2, 0, dtype=torch.long)):
        assert typed_edges(context_of(sizes, edge_index)).tolist() == [[*range(nodes)]] * 2 + [[SELF_LOOP] * nodes]


def test_self_loops_can_be_left_out_but_those_of_the_graph() -> None:
    graph = torch.tensor([[0, 1], [0, 0]])
    assert typed_edges(context_of([2], graph), self_loops=False).tolist() == [[0, 1], [0, 0], [GRAPH_EDGE, GRAPH_EDGE]]
    start = TypedEdgeStart(4, self_loops=False)
    assert start(context_of([2], graph)).edges.size(1) == 2


def test_the_first_state_has_one_vector_for_each_kind() -> None:
    start = TypedEdgeStart(4)
    state = start(context_of([2], torch.tensor([[0], [1]])))
    assert state.features is start.types.weight
    assert state.features.shape == (3, 4)
    assert state.virtual.shape == (0, 4)
