"""Pairs of nodes inside graphs, in one order: graph by graph, pair (i, j) of n nodes in row ``i * n + j``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphgps_kmip.ops.host_copies import host_copy, single_graph


def first_nodes(batch: Any) -> Tensor:
    """Return the first node of each graph, and the number of nodes at the end; a `Data` that is no batch is one graph.

    Shapes: (B + 1,).
    """
    return batch.ptr if "ptr" in batch else single_graph(batch.num_nodes, batch.x.device)


def all_pairs(ptr: Tensor) -> Tensor:
    """Return all pairs (query, key) of nodes of the same graph: graph by graph, query by query, in global node ids.

    Shapes: ptr (B+1,) of graphs of n nodes -> (2, sum of n^2).
    """
    sizes = ptr.diff()
    squares = sizes.square()
    number = int(host_copy(ptr).diff().square().sum())
    first, size, start = (
        values.repeat_interleave(squares, output_size=number)
        for values in (squares.cumsum(0) - squares, sizes, ptr[:-1])  # of each pair's graph
    )
    place = torch.arange(number, device=first.device) - first
    return torch.stack([start + place // size, start + place % size])


def pair_rows(ptr: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return the row of each pair in the order of `all_pairs`; query and key are nodes of the same graph.

    Shapes: ptr (B+1,), query and key (M,) -> (M,).
    """
    sizes = ptr.diff()
    graph = torch.searchsorted(ptr, query.contiguous(), right=True) - 1
    first = sizes.square().cumsum(0) - sizes.square()
    return first[graph] + (query - ptr[graph]) * sizes[graph] + key - ptr[graph]


def rows_in_list(index: Tensor, query: Tensor, key: Tensor, num_nodes: int) -> Tensor:
    """Return the row of each pair in a list in increasing order of queries and then keys; -1: it is not in the list.

    Shapes: index (2, P), query and key (M,) -> (M,).
    """
    list_keys, pair_keys = index[0] * num_nodes + index[1], query * num_nodes + key
    if not len(list_keys):
        return torch.full_like(pair_keys, -1)
    row = torch.searchsorted(list_keys, pair_keys).clamp(max=len(list_keys) - 1)
    return torch.where(list_keys[row] == pair_keys, row, -1)
