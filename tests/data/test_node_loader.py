"""Batches of the nodes of one graph: each node of a split counts once; draws; subgraphs around nodes; partitions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.utils import grid, subgraph

from graphgps_kmip.data import DatasetRecord, GraphDataset, NodeLoader, Sampling, make_loaders
from graphgps_kmip.data.graph_changes import partition, select_part
from graphgps_kmip.data.node_loader import NodeSubgraphs, around_nodes


def labelled(edge_index: torch.Tensor, num_nodes: int) -> Data:
    """Return a graph each of whose attributes tells which node or edge a row belongs to."""
    nodes, edges = torch.arange(num_nodes), torch.arange(edge_index.size(1))
    graph = Data(x=nodes[:, None].double(), y=nodes % 3, edge_index=edge_index, edge_attr=edges[:, None].double())
    for number, split in enumerate(("train", "val", "test")):
        graph[f"{split}_mask"] = nodes % 5 == number
    return graph


def mesh(height: int = 12, width: int = 15) -> Data:
    """Return a grid with diagonals and self-loops, in which every edge has a reverse."""
    edge_index, _ = grid(height, width)
    return labelled(edge_index, height * width)


def tangle(num_nodes: int = 60, num_edges: int = 200) -> Data:
    """Return a directed random graph with repeated edges, self-loops and isolated nodes."""
    generator = torch.Generator().manual_seed(0)
    return labelled(torch.randint(num_nodes - 5, (2, num_edges), generator=generator), num_nodes)


SIZES = Sampling(batch_size=4, neighbor_sizes=(3, 2), parts=9)
SAMPLERS = ["neighbor", "cluster", "random_node"]


def loader(graph: Data, name: str, split: str = "train", sampling: Sampling = SIZES, **options: int) -> NodeLoader:
    return NodeLoader(graph, split, name, sampling, **{"seed": 3, "shuffle": True, **options})


def counted(batches: list[Batch], split: str = "train") -> Counter:
    return Counter(int(x) for batch in batches for x in batch.x[batch[f"{split}_mask"], 0] if "filler" not in batch)


def same(left: list[Batch], right: list[Batch]) -> bool:
    return len(left) == len(right) and all(
        a.x.shape == b.x.shape
        and a.edge_attr.shape == b.edge_attr.shape
        and (a.x == b.x).all()
        and (a.edge_attr == b.edge_attr).all()
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("graph", [mesh(), tangle()], ids=["mesh", "tangle"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_node_of_the_split_counts_once_an_epoch(name: str, graph: Data, split: str) -> None:
    batches = list(loader(graph, name, split))
    assert len(batches) > 1
    expected = graph[f"{split}_mask"].nonzero().squeeze(1).tolist()
    assert counted(batches, split) == Counter(expected)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_edges_of_a_batch_are_edges_of_the_graph_between_the_same_nodes(name: str) -> None:
    graph = tangle()
    for batch in loader(graph, name):
        ids = batch.edge_attr[:, 0].long()
        assert len(ids.unique()) == len(ids)
        torch.testing.assert_close(batch.x[batch.edge_index, 0].long(), graph.edge_index[:, ids])


def test_as_many_neighbours_are_drawn_as_there_are_but_not_more_than_asked_for() -> None:
    graph = tangle()
    degree = graph.edge_index[1].bincount(minlength=graph.num_nodes)
    one_hop = Sampling(batch_size=4, neighbor_sizes=(3,))
    for batch in loader(graph, "neighbor", sampling=one_hop):
        seeds = batch.train_mask
        drawn = batch.edge_index[1].bincount(minlength=batch.num_nodes)
        torch.testing.assert_close(drawn[seeds], degree[batch.x[seeds, 0].long()].clamp(max=3))
        assert int(drawn[~seeds].sum()) == 0


def test_all_neighbours_of_all_hops_leave_the_output_of_a_node_as_it_is_in_the_whole_graph() -> None:
    graph = tangle()
    wide = Sampling(batch_size=4, neighbor_sizes=(-1, -1))

    def two_hops(data: Data) -> torch.Tensor:
        x = data.x
        for _ in range(2):
            x = x + torch.zeros_like(x).index_add(0, data.edge_index[1], x[data.edge_index[0]])
        return x

    whole = two_hops(graph)
    for batch in loader(graph, "neighbor", sampling=wide):
        seeds = batch.train_mask
        torch.testing.assert_close(two_hops(batch)[seeds], whole[batch.x[seeds, 0].long()])


def test_every_neighbour_is_drawn_equally_often() -> None:
    star = Data(x=torch.arange(7.0)[:, None], edge_index=torch.tensor([[1, 2, 3, 4, 5, 6], [0] * 6]))
    star.train_mask = torch.arange(7) == 0
    star.edge_attr = torch.arange(6.0)[:, None]
    draws = loader(star, "neighbor", sampling=Sampling(neighbor_sizes=(2,)))
    count = torch.zeros(6)
    for epoch in range(300):
        draws.set_epoch(epoch)
        for batch in draws:
            assert batch.num_edges == 2
            count[batch.edge_attr[:, 0].long()] += 1
    assert ((count - 100).abs() < 42).all()  # 5 standard deviations


@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_depend_on_seed_and_epoch_only(name: str) -> None:
    graph, first = mesh(), loader(mesh(), name)
    first.set_epoch(3)
    third = list(first)
    first.set_epoch(4)
    assert not same(list(first), third)
    torch.manual_seed(9)
    for workers in (0, 2):
        again = loader(graph, name, num_workers=workers)
        again.set_epoch(3)
        assert same(list(again), third)
    other = loader(graph, name, seed=4)
    other.set_epoch(3)
    assert not same(list(other), third)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("name", SAMPLERS)
def test_processes_share_the_batches_and_make_equally_many_steps(name: str, world_size: int) -> None:
    graph = mesh()
    shares = [list(loader(graph, name, rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    assert sum(map(counted, shares), Counter()) == counted(list(loader(graph, name)))


def test_a_batch_without_a_node_of_the_split_is_left_out() -> None:
    graph = mesh()
    graph.val_mask = torch.arange(graph.num_nodes) == 17
    (batch,) = loader(graph, "cluster", "val", sampling=Sampling(batch_size=1, parts=6))
    assert counted([batch], "val") == Counter([17])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sampler": "neighbour"},
            r"train\.sampler: choose one of full_batch, neighbor, .*node2subgraph, got 'neighbour'",
        ),
        ({"val_sampler": "saint_rw"}, r"val\.sampler: choose one of"),
        ({"batch_size": 0}, r"train\.batch_size and train\.train_parts: 1 or more, got 0"),
        ({"neighbor_sizes": (5, 0)}, r"train\.neighbor_sizes: numbers above 0, or -1 for all, got \[5, 0\]"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


def test_nodes_of_many_graphs_are_not_sampled() -> None:
    graphs = GraphDataset([mesh(2, 2), mesh(2, 3)], [[0], [1], [1]])
    with pytest.raises(ValueError, match=r"train\.sampler: cluster divides the nodes of one graph"):
        make_loaders(graphs, "graph", 2, 0, sampling=Sampling("cluster"))


def test_training_and_evaluation_have_samplers_of_their_own() -> None:
    loaders = make_loaders(GraphDataset([mesh()]), "node", 2, 0, sampling=Sampling("cluster", parts=6, batch_size=2))
    assert [len(loader) for loader in loaders] == [3, 1, 1]


GRAPHS = {"mesh": mesh, "tangle": tangle}


def test_further_pairs_of_nodes_keep_those_inside_with_their_features() -> None:
    graph = mesh(3, 3)
    graph.expander_edge_index = torch.tensor([[0, 8, 4], [8, 2, 5]])
    graph.expander_edge_attr = torch.tensor([10, 11, 12])
    graph.pair_index, graph.pair_attr = torch.tensor([[1, 5], [5, 7]]), torch.tensor([[1.0], [2.0]])
    graph.title = "a mesh"
    part = select_part(graph, torch.tensor([8, 5, 0, 1]), torch.tensor([], dtype=torch.long))
    assert part.expander_edge_index.tolist() == [[2], [0]]
    assert part.expander_edge_attr.tolist() == [10]
    assert part.pair_index.tolist() == [[3], [1]]
    assert part.pair_attr.tolist() == [[1.0]]
    assert part.edge_index.shape == (2, 0)
    assert part.title == "a mesh"


# Partitions


@pytest.mark.parametrize("parts", [1, 3, 7, 60])
@pytest.mark.parametrize("graph", [mesh(6, 10), tangle()], ids=["mesh", "tangle"])
def test_every_node_is_in_one_part_and_sizes_differ_by_one_at_most(graph: Data, parts: int) -> None:
    nodes = partition(graph.edge_index, graph.num_nodes, parts)
    assert len(nodes) == parts
    assert sorted(np.concatenate(nodes)) == list(range(graph.num_nodes))
    assert max(map(len, nodes)) - min(map(len, nodes)) <= 1
    assert all((np.diff(part) > 0).all() for part in nodes)


def test_a_road_is_cut_once_between_neighbouring_parts() -> None:
    shuffled = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    road = torch.stack([shuffled[:-1], shuffled[1:]])
    part = np.empty(1000, dtype=int)
    for number, nodes in enumerate(partition(road, 1000, 8)):
        part[nodes] = number
    assert (part[road[0]] != part[road[1]]).sum() == 7


@pytest.mark.parametrize("parts", [0, 5])
def test_more_parts_than_nodes_or_none_are_refused(parts: int) -> None:
    with pytest.raises(ValueError, match=rf"4 nodes cannot be cut into {parts} parts: set train\.train_parts"):
        partition(torch.empty(2, 0, dtype=torch.long), 4, parts)


# Subgraphs around nodes

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
        _, _, is_inside = subgraph(ball, graph.edge_index, num_nodes=graph.num_nodes, return_edge_mask=True)
        edges = part.edge_attr[:, 0].long()
        assert sorted(edges.tolist()) == is_inside.nonzero().squeeze(1).tolist()
        torch.testing.assert_close(ball[part.edge_index], graph.edge_index[:, edges])


@pytest.mark.parametrize("kind", GRAPHS)
def test_whole_hops_are_taken_while_they_fit_and_of_the_next_as_many_nodes_as_there_is_room_for(kind: str) -> None:
    graph, cut = GRAPHS[kind](), 0
    parts = NodeSubgraphs(graph, num_hops=4, max_nodes=12)
    for node in range(0, graph.num_nodes, 4):
        hops, nodes = hops_from(graph, node), nodes_of(parts[node])
        within = (hops >= 0) & (hops <= 4)
        assert len(nodes) == min(12, int(within.sum()))
        last = int(hops[nodes].max())
        assert set(((hops >= 0) & (hops < last)).nonzero().squeeze(1).tolist()) <= set(nodes)
        cut += int(within.sum()) > 12
    assert cut > graph.num_nodes / 8


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
    count = Counter(node for seed in range(300) for node in nodes_of(NodeSubgraphs(star, 2, 3, seed)[0]))
    assert count.pop(0) == 300
    assert len(count) == 6
    assert all(abs(times - 100) < 42 for times in count.values())  # 5 standard deviations


def test_draws_depend_on_seed_and_node_alone() -> None:
    graph = mesh()
    first = [nodes_of(part) for part in NodeSubgraphs(graph, 4, 20, seed=1)]
    again = NodeSubgraphs(graph, 4, 20, seed=1)
    torch.manual_seed(9)
    assert [nodes_of(again[node]) for node in reversed(range(len(again)))] == first[::-1]
    other = [nodes_of(part) for part in NodeSubgraphs(graph, 4, 20, seed=2)]
    assert sum(a != b for a, b in zip(first, other, strict=True)) > len(first) / 2


def test_loaders_give_each_node_of_a_split_once_an_epoch() -> None:
    graph = mesh()
    dataset = around_nodes(GraphDataset([graph]), RECORD, 2, 9, seed=3)
    for split, loader in zip(("train", "val", "test"), make_loaders(dataset, "node", 16, seed=0), strict=True):
        batches = list(loader)
        centres = torch.cat([batch.x[batch.target_mask, 0] for batch in batches]).long().tolist()
        assert sorted(centres) == graph[f"{split}_mask"].nonzero().squeeze(1).tolist()
        assert all(len(batch.y) == batch.num_graphs == int(batch.target_mask.sum()) for batch in batches)


@pytest.mark.parametrize(("hops", "nodes"), [(0, 9), (-1, 9), (2, 0)])
def test_sizes_below_one_are_refused(hops: int, nodes: int) -> None:
    with pytest.raises(ValueError, match=rf"train\.subgraph_hops and train\.subgraph_nodes: .* got {hops}, {nodes}"):
        NodeSubgraphs(mesh(), hops, nodes)


@pytest.mark.parametrize(
    ("level", "pattern"), [("graph", "whole graphs"), ("inductive_node", "the nodes of each graph")]
)
def test_many_graphs_are_refused(level: str, pattern: str) -> None:
    record = DatasetRecord("Toy", lambda _: [mesh(), mesh()], "classification", level=level)
    with pytest.raises(
        ValueError, match=rf"train\.sampler: node2subgraph .* of Toy {pattern} have labels: set full_ba"
    ):
        around_nodes(GraphDataset([mesh(), mesh()], [[0], [1], [1]]), record)
