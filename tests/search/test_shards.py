"""Which graphs a shard has, and which rows two shards have in common, against the graph of each row."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from graphgps_kmip.search.sharded_search import Shards, index_dtype


@pytest.mark.parametrize("ptr", [[0, 12], [0, 0, 5, 5, 6, 12, 12], [0, 4, 8, 12], [0, 2, 11, 12]])
@pytest.mark.parametrize("sizes", [[4, 4, 4], [0, 12, 0], [1, 0, 11], [0, 0, 12], [2, 9, 1], [5, 1, 6]])
def test_shards_know_their_graphs_and_those_they_share(sizes: list[int], ptr: list[int]) -> None:
    starts = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    graph = torch.repeat_interleave(torch.tensor(ptr).diff())
    rows = [graph[start:end] for start, end in pairwise(starts)]
    for rank, own in enumerate(rows):
        shards = Shards(rank, starts, torch.tensor(ptr), ptr, None)
        local = torch.repeat_interleave(shards.own_ptr().diff())
        assert local.unique_consecutive(return_counts=True)[1].tolist() == own.unique(return_counts=True)[1].tolist()
        for other in set(range(3)) - {rank}:
            for found, mine, theirs in zip(
                shards.common(rank, other), (own, rows[other]), (rows[other], own), strict=True
            ):
                assert list(range(len(mine)))[found] == torch.isin(mine, theirs).nonzero().flatten().tolist()


def test_indices_travel_as_int32_where_that_is_enough() -> None:
    assert (index_dtype(2**31 - 1), index_dtype(2**31)) == (torch.int32, torch.int64)
