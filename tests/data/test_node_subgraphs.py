"""Subgraphs around nodes: balls as by matrix powers, labels and marks of centres, draws by seed and node alone."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import subgraph

from graphgps_kmip.data import DatasetInfo, DatasetRecord, GraphDataset, Sampling, make_loaders
from graphgps_kmip.data.node_loader import NodeSubgraphs, around_nodes
from tests.data.large import mesh, tangle

GRAPHS = {"mesh": mesh, "tangle": tangle}
RECORD = DatasetRecord("Toy", lambda _: mesh(), "classification", level="node")


def nodes_of(part: Data) -> list[int]:
    return part.x[:, 0].long().tolist()


def hops_from(graph: Data, node: int) -> Tensor:
    """Return the hops to each node, edges taken both ways, by powers of the adjacency matrix; -1: none leads there."""
    adjacency = torch.eye(graph.num_nodes, dtype=torch.bool)
    source, target = graph.edge_index
    adjacency[source, target] = adjacency[target, source] = True
    hops, reached = torch.full((graph.num_nodes,), -1), torch.arange(graph.num_nodes) == node
    for hop in range(graph.num_nodes):
        hops[reached & (hops < 0)] = hop
        reached = adjacency[reached].any(0)
    return hops


@pytest.mark.parametrize("num_hops", [1, 2, 3])
@pytest.mark.parametrize("kind", GRAPHS)
def test_with_room_for_all_a_subgraph_is_the_whole_ball_with_all_edges_inside(kind: str, num_hops: int) -> None:
    graph = GRAPHS[kind]()
    parts = NodeSubgraphs(graph, num_hops, max_nodes=1000)
    assert len(parts) == graph.num_nodes
    for node in range(0, graph.num_nodes, 7):
        hops, part = hops_from(graph, node), parts[node]
        ball = ((hops >= 0) & (hops <= num_hops)).nonzero().squeeze(1)
        assert nodes_of(part) == ball.tolist()
        _, _, inside = subgraph(ball, graph.edge_index, num_nodes=graph.num_nodes, return_edge_mask=True)
        edges = part.edge_attr[:, 0].long()
        assert sorted(edges.tolist()) == inside.nonzero().squeeze(1).tolist()
        torch.testing.assert_close(ball[part.edge_index], graph.edge_index[:, edges])


@pytest.mark.parametrize("kind", GRAPHS)
def test_whole_hops_are_taken_while_they_fit_and_of_the_next_as_many_nodes_as_there_is_room_for(kind: str) -> None:
    graph, cut = GRAPHS[kind](), 0
    parts = NodeSubgraphs(graph, num_hops=4, max_nodes=12)
    for node in range(graph.num_nodes):
        hops, found = hops_from(graph, node), nodes_of(parts[node])
        within = (hops >= 0) & (hops <= 4)
        assert len(found) == min(12, int(within.sum()))
        last = int(hops[found].max())
        assert set(((hops >= 0) & (hops < last)).nonzero().squeeze(1).tolist()) <= set(found)
        cut += int(within.sum()) > 12
    assert cut > graph.num_nodes / 2


def test_the_centre_is_marked_and_its_label_is_that_of_the_subgraph() -> None:
    graph = tangle()
    graph.pos = graph.x.expand(-1, 2)
    for node, part in enumerate(NodeSubgraphs(graph, 2, 9, seed=4)):
        assert [row for row, marked in zip(nodes_of(part), part.target_mask, strict=True) if marked] == [node]
        assert part.y.tolist() == [int(graph.y[node])]
        torch.testing.assert_close(part.pos[:, 0], part.x[:, 0])
        assert not {"train_mask", "val_mask", "test_mask"} & set(part.keys())
    wide = tangle()
    wide.y = torch.arange(120.0).view(60, 2)
    assert NodeSubgraphs(wide)[7].y.tolist() == [[14.0, 15.0]]


def test_a_node_without_edges_and_a_room_for_one_node_give_the_node_alone() -> None:
    graph = tangle()
    assert nodes_of(NodeSubgraphs(graph)[58]) == [58]
    assert NodeSubgraphs(graph)[-2].y.tolist() == [int(graph.y[58])]
    for node, part in enumerate(NodeSubgraphs(graph, 3, max_nodes=1)):
        assert nodes_of(part) == [node]
        loops = ((graph.edge_index == node).all(dim=0)).sum()
        assert part.num_edges == int(loops)


def test_every_node_of_a_hop_without_room_is_drawn_equally_often() -> None:
    star = Data(x=torch.arange(7.0)[:, None], y=torch.zeros(7), edge_index=torch.tensor([[1, 2, 3, 0, 0, 0], [0] * 6]))
    star.edge_index[1, 3:] = torch.tensor([4, 5, 6])  # three into the centre, three out of it
    count = Counter(node for seed in range(600) for node in nodes_of(NodeSubgraphs(star, 2, 3, seed)[0]))
    assert count.pop(0) == 600
    assert len(count) == 6
    assert all(abs(times - 200) < 60 for times in count.values())  # 5 standard deviations


def test_draws_depend_on_seed_and_node_alone() -> None:
    graph = mesh()
    first = [nodes_of(part) for part in NodeSubgraphs(graph, 4, 20, seed=1)]
    again = NodeSubgraphs(graph, 4, 20, seed=1)
    torch.manual_seed(9)
    assert [nodes_of(again[node]) for node in reversed(range(len(again)))] == first[::-1]
    other = [nodes_of(part) for part in NodeSubgraphs(graph, 4, 20, seed=2)]
    assert sum(a != b for a, b in zip(first, other, strict=True)) > len(first) / 2


def test_the_graph_is_not_changed() -> None:
    graph = mesh()
    before = graph.clone()
    NodeSubgraphs(graph)[0].x.zero_()
    assert graph.keys() == before.keys()
    torch.testing.assert_close(graph.x, before.x)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loaders_give_each_node_of_a_split_once_an_epoch_in_any_number_of_processes(num_workers: int) -> None:
    graph = mesh()
    dataset = around_nodes(GraphDataset([graph]), RECORD, 2, 9, seed=3)
    loaders = make_loaders(dataset, "node", 16, seed=0, num_workers=num_workers, sampling=Sampling())
    plain = make_loaders(dataset, "node", 16, seed=0)
    for split, loader, expected in zip(("train", "val", "test"), loaders, plain, strict=True):
        found = list(loader)
        centres = torch.cat([batch.x[batch.target_mask, 0] for batch in found]).long().tolist()
        assert sorted(centres) == graph[f"{split}_mask"].nonzero().squeeze(1).tolist()
        for batch, same in zip(found, expected, strict=True):
            torch.testing.assert_close(batch.x, same.x)
            torch.testing.assert_close(batch.edge_index, same.edge_index)
            assert len(batch.y) == batch.num_graphs == int(batch.target_mask.sum())


def test_processes_share_the_nodes() -> None:
    dataset = around_nodes(GraphDataset([mesh()]), RECORD, 2, 9)
    shares = [make_loaders(dataset, "node", 8, seed=0, rank=rank, world_size=2)[0] for rank in range(2)]
    batches = [batch for share in shares for batch in share if "filler" not in batch]
    assert sum(batch.num_graphs for batch in batches) == len(dataset.splits.train)


def test_what_is_said_of_the_data_is_of_the_one_graph() -> None:
    graph = mesh()
    whole, parts = GraphDataset([graph]), around_nodes(GraphDataset([graph]), RECORD)
    assert DatasetInfo.of(parts, RECORD) == DatasetInfo.of(whole, RECORD)


@pytest.mark.parametrize(("hops", "nodes"), [(0, 9), (-1, 9), (2, 0)])
def test_sizes_below_one_are_refused(hops: int, nodes: int) -> None:
    with pytest.raises(ValueError, match=rf"train\.subgraph_hops and train\.subgraph_nodes: .* got {hops}, {nodes}"):
        NodeSubgraphs(mesh(), hops, nodes)


@pytest.mark.parametrize(("level", "words"), [("graph", "whole graphs"), ("inductive_node", "the nodes of each graph")])
def test_many_graphs_are_refused(level: str, words: str) -> None:
    record = DatasetRecord("Toy", lambda _: [mesh(), mesh()], "classification", level=level)
    with pytest.raises(ValueError, match=rf"train\.sampler: node2subgraph .* of Toy {words} have labels: set full_ba"):
        around_nodes(GraphDataset([mesh(), mesh()], [[0], [1], [1]]), record)
