"""Loaders: nothing lost, nothing twice, the same global batches for any number of processes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import chain

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data

from graphgps_kmip.data import GraphDataset, GraphLoader, make_loaders
from graphgps_kmip.data.loaders import NodeBudget, with_node_budget


def numbers(batch: Batch) -> list[int]:
    """Return the numbers of the rings in a batch, none for a filler."""
    return [] if "filler" in batch else [int(x) for x in batch.x[batch.ptr[:-1], 0]]


def epoch_of(loader: GraphLoader, epoch: int) -> list[list[int]]:
    loader.set_epoch(epoch)
    return [numbers(batch) for batch in loader]


@pytest.mark.parametrize("num", [1, 3, 8, 9])
@pytest.mark.parametrize("batch_size", [1, 4, 20])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_processes_share_the_same_global_batches(
    num: int, batch_size: int, world_size: int, shuffle: bool, rings: Callable[[int], GraphDataset]
) -> None:
    graphs = rings(9).graphs[:num]
    alone = epoch_of(GraphLoader(graphs, batch_size, 5, shuffle), epoch=2)
    loaders = [GraphLoader(graphs, batch_size, 5, shuffle, 0, rank, world_size) for rank in range(world_size)]
    shares = [epoch_of(loader, epoch=2) for loader in loaders]
    assert {len(loader) for loader in loaders} == {len(alone)} == {len(share) for share in shares}
    for step, whole in enumerate(alone):
        for rank, share in enumerate(shares):
            assert share[step] == whole[rank::world_size]
    assert sorted(chain.from_iterable(alone)) == list(range(num))


def test_a_process_without_a_share_gets_a_graph_marked_as_filler(rings: Callable[[int], GraphDataset]) -> None:
    graphs = rings(5).graphs
    *_, last = GraphLoader(graphs, 4, rank=1, world_size=2)
    assert last.filler is True
    assert last.num_graphs == 1
    assert all("filler" not in batch for batch in GraphLoader(graphs, 4, rank=0, world_size=2))


def test_the_order_depends_on_seed_and_epoch_only(rings: Callable[[int], GraphDataset]) -> None:
    graphs = rings(9).graphs
    first = GraphLoader(graphs, 4, seed=1, shuffle=True)
    third = epoch_of(first, 3)
    assert epoch_of(first, 4) != third
    assert epoch_of(first, 3) == third
    torch.manual_seed(99)
    assert epoch_of(GraphLoader(graphs, 4, seed=1, shuffle=True), 3) == third
    assert epoch_of(GraphLoader(graphs, 4, seed=2, shuffle=True), 3) != third


def test_loading_does_not_move_the_random_state_of_the_model(rings: Callable[[int], GraphDataset]) -> None:
    loader = GraphLoader(rings(5).graphs, 2, shuffle=True)
    state = torch.get_rng_state()
    list(loader)
    torch.testing.assert_close(torch.get_rng_state(), state)


def test_only_training_is_shuffled(rings: Callable[[int], GraphDataset]) -> None:
    dataset = GraphDataset(rings(30).graphs, (range(10), range(10, 20), range(20, 30)))
    train, val, test = make_loaders(dataset, "graph", 6, seed=0)
    assert [len(loader) for loader in (train, val, test)] == [2, 2, 2]
    assert sorted(chain.from_iterable(epoch_of(train, 0))) == list(range(10)) != list(chain(*epoch_of(train, 0)))
    assert [epoch_of(loader, 0) for loader in (val, test)] == [
        [list(range(10, 16)), list(range(16, 20))],
        [list(range(20, 26)), list(range(26, 30))],
    ]
    in_order = make_loaders(dataset, "graph", 4, seed=0, shuffle=False)[0]
    assert list(chain(*epoch_of(in_order, 0))) == list(range(10))


def test_one_divided_graph_is_the_only_batch_of_each_loader_and_counts_in_one_process(divided: Data) -> None:
    dataset = GraphDataset([divided])
    for loader in make_loaders(dataset, "node", 32, seed=0):
        (batch,) = loader
        torch.testing.assert_close(batch.train_mask, divided.train_mask)
        assert batch.num_graphs == len(loader) == 1
    (second,) = make_loaders(dataset, "node", 32, seed=0, rank=1, world_size=2)[0]
    assert second.filler is True


class Noisy(list):
    """Graphs that get a random number when they are read, as from random encodings."""

    def __getitem__(self, index: int) -> Data:
        data = copy.copy(super().__getitem__(index))
        data.noise = torch.rand(1)
        return data


def test_worker_processes_give_the_same_batches_and_are_seeded(rings: Callable[[int], GraphDataset]) -> None:
    graphs = rings(9).graphs
    workers = GraphLoader(Noisy(graphs), 4, seed=1, shuffle=True, num_workers=1)
    alone = GraphLoader(graphs, 4, seed=1, shuffle=True)
    drawn = []
    for epoch in (0, 1):
        workers.set_epoch(epoch)
        batches = list(workers)
        assert [numbers(batch) for batch in batches] == epoch_of(alone, epoch)
        drawn += [batch.noise for batch in batches]
    torch.manual_seed(99)
    again, other = (list(GraphLoader(Noisy(graphs), 4, seed=seed, num_workers=1)) for seed in (1, 2))
    torch.testing.assert_close(drawn[: len(again)], [batch.noise for batch in again], rtol=0, atol=0)
    assert not torch.equal(drawn[0], drawn[3])
    assert not torch.equal(drawn[0], other[0].noise)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, r"train\.batch_size must be at least 1, got 0"),
        ({"batch_size": 1, "rank": 2, "world_size": 2}, r"rank must be in 0\.\.1 for 2 processes, got 2"),
    ],
)
def test_impossible_shares_are_refused(
    settings: dict[str, int], message: str, rings: Callable[[int], GraphDataset]
) -> None:
    with pytest.raises(ValueError, match=message):
        GraphLoader(rings(3).graphs, **settings)


SIZES = [3, 9, 1, 4, 4, 30, 2, 7, 1, 12]


def plan(max_nodes: int, seed: int | None = 0, epoch: int = 0, rank: int = 0, world_size: int = 1) -> list[list[int]]:
    batches = NodeBudget(SIZES, max_nodes, seed, rank, world_size)
    batches.epoch = epoch
    assert len(batches) == len(list(batches))
    return list(batches)


@pytest.mark.parametrize("max_nodes", [1, 13, 20, 1000])
def test_a_batch_of_a_budget_ends_only_where_the_next_graph_would_not_fit(max_nodes: int) -> None:
    batches = plan(max_nodes)
    assert sorted(chain.from_iterable(batches)) == list(range(len(SIZES)))
    for batch, following in zip(batches, [*batches[1:], []], strict=True):
        assert sum(SIZES[graph] for graph in batch) <= max_nodes or len(batch) == 1
        assert not following or sum(SIZES[graph] for graph in [*batch, following[0]]) > max_nodes
    assert plan(13, seed=None) == [[0, 1, 2], [3, 4], [5], [6, 7, 8], [9]]


def test_the_order_of_a_budget_is_that_of_the_plain_loader_and_processes_share_its_batches() -> None:
    expected = np.random.default_rng((7, 3)).permutation(len(SIZES)).tolist()
    whole = plan(13, seed=7, epoch=3)
    assert list(chain.from_iterable(whole)) == expected
    assert len({str(plan(13, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4
    shares = [plan(13, seed=7, epoch=3, rank=rank, world_size=3) for rank in range(3)]
    assert [list(step) for step in zip(*shares, strict=True)] == [
        [batch[rank::3] for rank in range(3)] for batch in whole
    ]


def test_a_loader_takes_the_budget_and_the_one_that_it_was_made_from_stays_as_it_is() -> None:
    graphs = [Data(torch.full((size, 1), float(i)), torch.empty(2, 0).long()) for i, size in enumerate(SIZES)]
    plain = GraphLoader(graphs, 2, seed=5, shuffle=True, world_size=2, rank=1)
    loader = with_node_budget(plain, 13)
    loader.set_epoch(4)
    batches = [numbers(batch) for batch in loader]
    assert batches == plan(13, seed=5, epoch=4, rank=1, world_size=2)
    assert [] in batches  # its share of a batch of one graph is a filler
    assert len(loader) == len(batches)
    assert len(plain) == 5
    assert plain.batches.epoch == 0


def test_a_budget_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match="train.max_nodes must be at least 1, or 0"):
        plan(0)
