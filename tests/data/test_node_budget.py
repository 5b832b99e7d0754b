"""Batches by a budget of nodes: nothing lost, nothing twice, none too large, the same for any number of processes."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from graphgps_kmip.data import GraphLoader
from graphgps_kmip.data.loaders import NodeBudget, with_node_budget

SIZES = [3, 9, 1, 4, 4, 30, 2, 7, 1, 12]


def plan(max_nodes: int, seed: int | None = 0, epoch: int = 0, rank: int = 0, world_size: int = 1) -> list[list[int]]:
    batches = NodeBudget(SIZES, max_nodes, seed, rank, world_size)
    batches.epoch = epoch
    assert len(batches) == len(list(batches))
    return list(batches)


@pytest.mark.parametrize("max_nodes", [1, 5, 12, 13, 40, 1000])
def test_every_graph_comes_once_and_only_a_graph_alone_exceeds_the_budget(max_nodes: int) -> None:
    batches = plan(max_nodes)
    assert sorted(chain.from_iterable(batches)) == list(range(len(SIZES)))
    assert all(batch for batch in batches)
    for batch in batches:
        assert sum(SIZES[graph] for graph in batch) <= max_nodes or len(batch) == 1


def test_a_batch_ends_only_where_the_next_graph_would_not_fit() -> None:
    assert plan(13, seed=None) == [[0, 1, 2], [3, 4], [5], [6, 7, 8], [9]]
    for batch, following in zip(plan(20), plan(20)[1:], strict=False):
        assert sum(SIZES[graph] for graph in [*batch, following[0]]) > 20


def test_the_order_is_that_of_the_plain_loader_and_changes_with_seed_and_epoch() -> None:
    expected = np.random.default_rng((7, 3)).permutation(len(SIZES)).tolist()
    assert list(chain.from_iterable(plan(13, seed=7, epoch=3))) == expected
    assert plan(13, seed=7, epoch=3) == plan(13, seed=7, epoch=3)
    assert len({str(plan(13, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_processes_share_the_same_global_batches(world_size: int) -> None:
    shares = [plan(13, rank=rank, world_size=world_size) for rank in range(world_size)]
    for step, whole in enumerate(plan(13)):
        assert [share[step] for share in shares] == [whole[rank::world_size] for rank in range(world_size)]


def test_a_loader_takes_the_budget_and_the_one_that_it_was_made_from_stays_as_it_is() -> None:
    graphs = [Data(torch.full((size, 1), float(i)), torch.empty(2, 0).long()) for i, size in enumerate(SIZES)]
    plain = GraphLoader(graphs, 2, seed=5, shuffle=True, world_size=2, rank=1)
    loader = with_node_budget(plain, 13)
    loader.set_epoch(4)
    found = [[] if "filler" in batch else batch.x[batch.ptr[:-1], 0].int().tolist() for batch in loader]
    assert found == plan(13, seed=5, epoch=4, rank=1, world_size=2)
    assert [] in found  # its share of a batch of one graph is a filler
    assert len(loader) == len(found)
    assert len(plain) == 5
    assert plain.batches.epoch == 0


def test_a_budget_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match="train.max_nodes must be at least 1, or 0"):
        plan(0)
