"""Reverse edges and self loops of one graph: what is there counts once, unless asked otherwise."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

from graphgps_kmip.data.graph_changes import with_reverse_edges, with_self_loops

EDGES = [(0, 1), (1, 0), (1, 2), (3, 3)]  # node 4 has none


def graph(attr: bool) -> Data:
    edges = torch.tensor(EDGES).T
    edge_attr = torch.tensor([[1.0], [3.0], [5.0], [7.0]]) if attr else None
    return Data(x=torch.zeros(5, 1), edge_index=edges, edge_attr=edge_attr)


def edges(graph: Data) -> dict[tuple[int, int], float | None]:
    values = [None] * graph.num_edges if graph.edge_attr is None else graph.edge_attr.flatten().tolist()
    pairs = [tuple(pair) for pair in graph.edge_index.T.tolist()]
    assert len(set(pairs)) == len(pairs), "an edge stands twice"
    return dict(zip(pairs, values, strict=True))


@pytest.mark.parametrize("attr", [False, True])
def test_reverse_edges_are_added_where_they_are_missing(attr: bool) -> None:
    given = graph(attr)
    want = {(0, 1): 2.0, (1, 0): 2.0, (1, 2): 5.0, (2, 1): 5.0, (3, 3): 7.0}
    assert edges(with_reverse_edges(given)) == {pair: value if attr else None for pair, value in want.items()}
    assert edges(given) == edges(graph(attr)), "the graph itself has changed"


@pytest.mark.parametrize("attr", [False, True])
def test_each_node_gets_one_loop(attr: bool) -> None:
    found = edges(with_self_loops(graph(attr)))
    assert {pair for pair in found if pair[0] == pair[1]} == {(i, i) for i in range(5)}
    assert {pair for pair in found if pair[0] != pair[1]} == {(0, 1), (1, 0), (1, 2)}
    assert found[3, 3] == (0.0 if attr else None)


def test_a_graph_without_edges_stays_so_and_gets_loops() -> None:
    empty = Data(x=torch.zeros(2, 1), edge_index=torch.zeros(2, 0, dtype=torch.long))
    assert with_reverse_edges(empty).num_edges == 0
    assert edges(with_self_loops(empty)) == {(0, 0): None, (1, 1): None}
