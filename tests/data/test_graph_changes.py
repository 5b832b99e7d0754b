"""Orders of nodes: what they are on graphs where that is known, and that a graph stays the same graph."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_dense_adj, to_undirected

from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.graph_changes import ORDERS, node_order, order_nodes, with_reverse_edges, with_self_loops


def path(labels: list[int]) -> Data:
    nodes = torch.tensor(labels)
    edges = to_undirected(torch.stack([nodes[:-1], nodes[1:]]))
    size = len(labels)
    return Data(
        x=torch.arange(size * 2.0).view(size, 2),
        y=torch.arange(size),
        edge_index=edges,
        edge_attr=(edges.sum(0, keepdim=True).T * 1.0),
        train_mask=torch.arange(size) % 2 == 0,
        num_nodes=size,
    )


PATH = [3, 0, 5, 1, 4, 2]


@pytest.mark.parametrize("kind", ["bfs", "spectral"])
def test_a_path_is_walked_from_one_end_to_the_other(kind: str) -> None:
    assert node_order(path(PATH), kind).tolist() in (PATH, PATH[::-1])


def test_the_degree_order_begins_with_the_hub_and_keeps_ties_as_they_are() -> None:
    star = Data(edge_index=torch.tensor([[0, 1, 3, 4], [2, 2, 2, 0]]), num_nodes=5)
    assert node_order(star, "degree").tolist() == [2, 0, 1, 3, 4]


def test_one_component_comes_after_the_other() -> None:
    both = Data(edge_index=torch.tensor([[0, 2, 4, 1, 3], [2, 4, 6, 3, 5]]), num_nodes=8)
    for kind in ("bfs", "spectral"):
        order = node_order(both, kind).tolist()
        assert sorted(order) == list(range(8))
        assert {0, 2, 4, 6} in (set(order[start : start + 4]) for start in range(5))


def test_random_orders_depend_on_seed_and_graph_only() -> None:
    graph = Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=50)
    first = node_order(graph, "random", seed=1, number=2)
    assert torch.equal(first, node_order(graph, "random", seed=1, number=2))
    assert not torch.equal(first, node_order(graph, "random", seed=2, number=2))
    assert not torch.equal(first, node_order(graph, "random", seed=1, number=3))


@pytest.mark.parametrize("kind", [kind for kind in ORDERS if kind != "natural"])
@pytest.mark.parametrize("size", [1, 2, 6])
def test_an_ordered_graph_is_the_same_graph(kind: str, size: int) -> None:
    graph = path(sorted(PATH[:size], key=PATH.index) if size == 6 else list(range(size)))
    result = order_nodes(GraphDataset([graph, graph]), kind, seed=3)[1]
    order = node_order(graph, kind, seed=3, number=1)
    assert torch.equal(result.x, graph.x[order])
    assert torch.equal(result.y, order)
    assert torch.equal(result.train_mask, graph.train_mask[order])
    if size > 1:
        before = to_dense_adj(graph.edge_index, edge_attr=graph.edge_attr, max_num_nodes=size)[0]
        after = to_dense_adj(result.edge_index, edge_attr=result.edge_attr, max_num_nodes=size)[0]
        assert torch.equal(after, before[order][:, order])


def test_the_natural_order_changes_nothing_and_another_name_is_refused() -> None:
    dataset = GraphDataset([path(PATH)])
    assert order_nodes(dataset, "natural", 0) is dataset
    with pytest.raises(ValueError, match="prep.node_order"):
        node_order(dataset.graphs[0], "spectrall")


EDGES = [(0, 1), (1, 0), (1, 2), (3, 3)]  # node 4 has none


def graph(attr: bool) -> Data:
    edges = torch.tensor(EDGES).T
    edge_attr = torch.tensor([[1.0], [3.0], [5.0], [7.0]]) if attr else None
    return Data(x=torch.zeros(5, 1), edge_index=edges, edge_attr=edge_attr)


def edges(graph: Data) -> dict[tuple[int, int], float | None]:
    values = [None] * graph.num_edges if graph.edge_attr is None else graph.edge_attr.flatten().tolist()
    pairs = [tuple(pair) for pair in graph.edge_index.T.tolist()]
    assert len(set(pairs)) == len(pairs), "an edge is there twice"
    return dict(zip(pairs, values, strict=True))


@pytest.mark.parametrize("attr", [False, True])
def test_reverse_edges_are_added_where_they_are_missing(attr: bool) -> None:
    original = graph(attr)
    want = {(0, 1): 2.0, (1, 0): 2.0, (1, 2): 5.0, (2, 1): 5.0, (3, 3): 7.0}
    assert edges(with_reverse_edges(original)) == {pair: value if attr else None for pair, value in want.items()}
    assert edges(original) == edges(graph(attr)), "the graph itself has changed"


@pytest.mark.parametrize("attr", [False, True])
def test_each_node_gets_one_loop(attr: bool) -> None:
    result = edges(with_self_loops(graph(attr)))
    assert {pair for pair in result if pair[0] == pair[1]} == {(i, i) for i in range(5)}
    assert {pair for pair in result if pair[0] != pair[1]} == {(0, 1), (1, 0), (1, 2)}
    assert result[3, 3] == (0.0 if attr else None)
