"""Tiles of graphs: a partition of the nodes into pieces of bounded size."""

from __future__ import annotations

import pytest
import torch

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.dense import Tiles


def graphs_of(sizes: list[int]) -> GraphContext:
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    return GraphContext(torch.repeat_interleave(ptr.diff()), ptr)


def test_each_graph_is_cut_into_full_tiles_and_a_rest() -> None:
    found = Tiles.of(graphs_of([5, 0, 1, 4, 7]), 3)
    tiles = found.context
    assert tiles.sizes.tolist() == [3, 2, 1, 3, 1, 3, 3, 1]
    assert found.graph.tolist() == [0, 0, 2, 3, 3, 4, 4, 4]
    assert found.place.tolist() == [0, 1, 0, 0, 1, 0, 1, 2]
    assert tiles.batch.tolist() == torch.repeat_interleave(tiles.sizes).tolist()
    assert tiles.ptr.tolist() == [0, *tiles.sizes.cumsum(0).tolist()]


@pytest.mark.parametrize("sizes", [[9], [5, 3, 4], [], [0], [4, 0]])
def test_graphs_of_like_size_stay_whole(sizes: list[int]) -> None:
    context = graphs_of(sizes)
    found = Tiles.of_uneven(context, 3)
    assert found.context is context
    assert found.graph.tolist() == list(range(len(sizes)))
    assert found.place.tolist() == [0] * len(sizes)


def test_graphs_of_unlike_size_are_cut() -> None:
    assert Tiles.of_uneven(graphs_of([4, 0, 1]), 3).graph.tolist() == [0, 0, 2]


def test_a_batch_without_nodes_has_no_tile() -> None:
    for sizes in ([], [0, 0]):
        found = Tiles.of(graphs_of(sizes), 3)
        assert len(found.graph) == len(found.place) == found.context.num_graphs == 0
