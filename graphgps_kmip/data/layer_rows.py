"""Rows of a layer of a sampled mini-batch: its targets first, then the other sources of its edges, each node once."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from graphgps_kmip.data.edge_sampling import KERNEL
from graphgps_kmip.native import load, pointer, unavailable_reason

WORD = 64  # nodes that the C loop marks in one number


def with_sources(rows: Tensor, source: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Append the sources that are not among the rows, in increasing order, and return the row of each source.

    A C loop marks nodes in N bits and counts them (``native/edge_sampling.c``), without a compiler they are sorted.

    Args:
        rows: nodes, each once.
        source: nodes, in any order.
        num_nodes: N; all nodes are below.

    Shapes: rows (n,), source (E,) -> rows (m,), row of each source (E,), all int64.
    """
    if unavailable_reason(*KERNEL):
        return _by_sorting(rows, source)
    words, most = -(-num_nodes // WORD), len(rows) + len(source)
    bits, rank = torch.zeros(words, dtype=torch.long), torch.empty(words, dtype=torch.long)
    row_of, found, place = rows.new_empty(most), rows.new_empty(most), torch.empty_like(source)
    count_rows = load(*KERNEL).layer_rows
    count_rows.restype, long = ctypes.c_int64, ctypes.c_int64
    count = count_rows(
        *(pointer(rows), long(len(rows)), pointer(source), long(len(source)), long(words)),
        *map(pointer, (bits, rank, row_of, found, place)),
    )
    return found[:count].clone(), place


def _by_sorting(rows: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    nodes, inverse = torch.cat([rows, source]).unique(return_inverse=True)
    row_of = torch.full_like(nodes, -1)
    row_of[inverse[: len(rows)]] = torch.arange(len(rows))
    new = row_of < 0
    row_of[new] = torch.arange(len(rows), len(nodes))
    return torch.cat([rows, nodes[new]]), row_of[inverse[len(rows) :]]
