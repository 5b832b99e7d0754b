"""Batches of the nodes of one graph: each node of a split counts once, and draws depend on seed and epoch only."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.utils import subgraph

from graphgps_kmip.data import GraphDataset, NodeLoader, Sampling, make_loaders
from graphgps_kmip.data.node_loader import InEdges, inside, part_of
from tests.data.large import mesh, tangle

SIZES = Sampling(batch_size=4, neighbor_sizes=(3, 2), parts=9)
SAMPLERS = ["neighbor", "cluster", "random_node"]


def loader(graph: Data, name: str, split: str = "train", sampling: Sampling = SIZES, **options: int) -> NodeLoader:
    return NodeLoader(graph, split, name, sampling, **{"seed": 3, "shuffle": True, **options})


def counted(batches: list[Batch], split: str = "train") -> Counter:
    return Counter(int(x) for batch in batches for x in batch.x[batch[f"{split}_mask"], 0] if "filler" not in batch)


def same(one: list[Batch], other: list[Batch]) -> bool:
    return len(one) == len(other) and all(
        a.x.shape == b.x.shape
        and a.edge_attr.shape == b.edge_attr.shape
        and (a.x == b.x).all()
        and (a.edge_attr == b.edge_attr).all()
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("graph", [mesh(), tangle()], ids=["mesh", "tangle"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_node_of_the_split_counts_once_an_epoch(name: str, graph: Data, split: str) -> None:
    batches = list(loader(graph, name, split))
    assert len(batches) > 1
    wanted = graph[f"{split}_mask"].nonzero().squeeze(1).tolist()
    assert counted(batches, split) == Counter(wanted)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_edges_of_a_batch_are_edges_of_the_graph_between_the_same_nodes(name: str) -> None:
    graph = tangle()
    for batch in loader(graph, name):
        ids = batch.edge_attr[:, 0].long()
        assert len(ids.unique()) == len(ids)
        torch.testing.assert_close(batch.x[batch.edge_index, 0].long(), graph.edge_index[:, ids])


@pytest.mark.parametrize("name", ["cluster", "random_node"])
def test_clusters_and_random_subsets_keep_every_edge_inside(name: str) -> None:
    graph = mesh()
    for batch in loader(graph, name):
        member = torch.zeros(graph.num_nodes, dtype=torch.bool)
        member[batch.x[:, 0].long()] = True
        assert batch.num_edges == int(member[graph.edge_index].all(dim=0).sum())


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
    for epoch in range(600):
        draws.set_epoch(epoch)
        for batch in draws:
            assert batch.num_edges == 2
            count[batch.edge_attr[:, 0].long()] += 1
    assert ((count - 200).abs() < 60).all()  # 5 standard deviations


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


@pytest.mark.parametrize("name", SAMPLERS)
def test_without_shuffling_every_epoch_is_the_same(name: str) -> None:
    still = loader(mesh(), name, "val", shuffle=False)
    first = list(still)
    still.set_epoch(1)
    assert same(list(still), first)


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
    assert [len(one) for one in loaders] == [3, 1, 1]


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
