"""Parts of a graph: every row goes with its node or edge."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import subgraph

from graphgps_kmip.data.node_loader import InEdges, inside, part_of
from tests.data.large import mesh, tangle

GRAPHS = {"mesh": mesh, "tangle": tangle}


@pytest.mark.parametrize("kind", GRAPHS)
def test_edges_are_found_by_their_targets_node_by_node(kind: str) -> None:
    graph = GRAPHS[kind]()
    nodes = torch.tensor([7, 58, 0, 21])  # 58 is isolated in the tangle
    edges, count = InEdges(graph.edge_index, graph.num_nodes).of(nodes)
    expected = [(graph.edge_index[1] == node).nonzero().squeeze(1) for node in nodes]
    torch.testing.assert_close(edges, torch.cat(expected))
    assert count.tolist() == [len(found) for found in expected]


@pytest.mark.parametrize("kind", GRAPHS)
def test_a_part_holds_the_rows_of_its_nodes_and_the_edges_among_them(kind: str) -> None:
    graph = GRAPHS[kind]()
    nodes = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(1))[:25]
    edges = inside(InEdges(graph.edge_index, graph.num_nodes), nodes, graph.num_nodes)
    _, _, kept = subgraph(nodes, graph.edge_index, num_nodes=graph.num_nodes, return_edge_mask=True)
    assert sorted(edges.tolist()) == kept.nonzero().squeeze(1).tolist()
    part = part_of(graph, nodes, edges)
    torch.testing.assert_close(part.x, graph.x[nodes])
    torch.testing.assert_close(part.train_mask, graph.train_mask[nodes])
    torch.testing.assert_close(nodes[part.edge_index], graph.edge_index[:, edges])
    torch.testing.assert_close(part.edge_attr[:, 0].long(), edges)


def test_further_pairs_of_nodes_keep_those_inside_with_their_features() -> None:
    graph = mesh(3, 3)
    graph.expander_edge_index = torch.tensor([[0, 8, 4], [8, 2, 5]])
    graph.expander_edge_attr = torch.tensor([10, 11, 12])
    graph.pair_index, graph.pair_attr = torch.tensor([[1, 5], [5, 7]]), torch.tensor([[1.0], [2.0]])
    graph.title = "a mesh"
    part = part_of(graph, torch.tensor([8, 5, 0, 1]), torch.tensor([], dtype=torch.long))
    assert part.expander_edge_index.tolist() == [[2], [0]]
    assert part.expander_edge_attr.tolist() == [10]
    assert part.pair_index.tolist() == [[3], [1]]
    assert part.pair_attr.tolist() == [[1.0]]
    assert part.edge_index.shape == (2, 0)
    assert part.title == "a mesh"


def test_a_graph_is_not_changed_and_an_edgeless_one_has_edgeless_parts() -> None:
    graph = Data(x=torch.arange(4.0)[:, None], edge_index=torch.empty(2, 0, dtype=torch.long))
    before = graph.clone()
    nodes = torch.tensor([3, 1])
    part = part_of(graph, nodes, inside(InEdges(graph.edge_index, 4), nodes, 4))
    assert part.x[:, 0].tolist() == [3.0, 1.0]
    assert part.num_edges == 0
    assert graph.keys() == before.keys()
    torch.testing.assert_close(graph.x, before.x)
