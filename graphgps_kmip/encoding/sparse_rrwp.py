"""Random walk probabilities of near pairs of nodes alone (sparse RRWP): lists of pairs within k hops, for large graphs.

The values are those of rrwp.py. What differs is which pairs have a row: those whose first ``k_hop + 1`` channels do not
sum to 0, where the dense form has zeros in the rows of all others. A graph of N nodes has N^2 rows there; here Cora's
2,708 nodes have 99,596 within 2 hops in place of 7.3 million.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphgps_kmip.errors import InputError

if TYPE_CHECKING:
    from graphgps_kmip.encoding.rrwp import Walks

GROUP = "posenc_RRWP"
# Numbers of one matrix of all nodes times some queries, of which k_hop + 2 are held at once: 64 MiB each in float64.
BLOCK_NUMBERS = 1 << 23


def near_pairs(
    counts: tuple[Tensor, Tensor], num_nodes: int, walks: Walks, max_bytes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values of the near pairs of one graph, the pairs, and the degrees.

    The channels of some queries are computed at a time, by products with a sparse matrix: time is that of N E numbers
    for each channel, memory that of the result and some `BLOCK_NUMBERS`.

    Args:
        counts (tuple[Tensor, Tensor]): entries (row, column) of the adjacency matrix in increasing order, and how many
            edges each is.
        num_nodes (int): N.
        walks (Walks): which matrices the channels are, and ``k_hop``.
        max_bytes (int): largest size of the values.

    Shapes: counts (2, E) and (E,) -> values (P, C), pairs (2, P), query first, in the order of queries and then keys;
        degrees (N,) int64.

    Raises:
        InputError: the values take more than max_bytes.
    """
    (row, column), count = counts
    steps = [_transposed_step(row, column, count, num_nodes, walks)]
    if walks.dual_direction:
        steps.append(_transposed_step(column, row, count, num_nodes, walks))
    size = max(1, BLOCK_NUMBERS // max(1, num_nodes))
    values, pairs, found = [], [], 0
    for start in range(0, num_nodes, size):
        queries = torch.arange(start, min(start + size, num_nodes), device=row.device)
        pair, value = _of_queries(queries, steps, num_nodes, walks)
        found += len(value)
        if found * walks.pair_bytes > max_bytes:
            raise InputError(
                f"{GROUP}: {walks.num_channels} channels of the pairs within {walks.k_hop} hops of a graph of "
                f"{num_nodes:,} nodes take more than {max_bytes / 2**30:g} GiB: lower {GROUP}.k_hop or ksteps"
            )
        values.append(value)
        pairs.append(pair)
    degree = count.new_zeros(num_nodes).index_add(0, row, count).long()
    nothing = row.new_empty(2, 0), torch.empty(0, walks.num_channels, dtype=walks.dtype, device=row.device)
    return torch.cat([nothing[1], *values]), torch.cat([nothing[0], *pairs], dim=1), degree


def adjacency_counts(edge_index: Tensor, num_nodes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the entries (row, column) of the adjacency matrix in increasing order, and how many edges each is.

    Shapes: edge_index (2, M) -> (2, E), (E,).
    """
    keys, count = (edge_index[0] * num_nodes + edge_index[1]).unique(return_counts=True)
    return torch.stack([keys // max(1, num_nodes), keys % max(1, num_nodes)]), count.to(dtype)


def undirected_counts(counts: tuple[Tensor, Tensor], num_nodes: int) -> tuple[tuple[Tensor, Tensor], bool]:
    """Return a directed graph made undirected, with single edges, and whether it was directed."""
    (row, column), count = counts
    keys, order = (column * num_nodes + row).sort()
    if torch.equal(keys, row * num_nodes + column) and torch.equal(count[order], count):
        return counts, False
    index, _ = adjacency_counts(torch.cat([counts[0], counts[0].flip(0)], dim=1), num_nodes, count.dtype)
    return (index, count.new_ones(index.size(1))), True


def _transposed_step(row: Tensor, column: Tensor, count: Tensor, num_nodes: int, walks: Walks) -> Tensor:
    """Return the sparse matrix M^T, (N, N), with M = D^-1 A, or D^-1/2 A D^-1/2."""
    degree = count.new_zeros(num_nodes).index_add(0, row, count)
    scale = torch.where(degree > 0, degree.pow(-0.5 if walks.sym_norm else -1), 0)
    entries = count * scale[row] * (scale[column] if walks.sym_norm else 1)
    index, shape = torch.stack([column, row]), (num_nodes, num_nodes)
    return torch.sparse_coo_tensor(index, entries, shape, check_invariants=False).coalesce()


def _channels_of_queries(queries: Tensor, steps: list[Tensor], num_nodes: int, walks: Walks) -> Iterator[Tensor]:
    """Yield each channel of some queries, transposed: (N, Q)."""
    start = torch.zeros(num_nodes, len(queries), dtype=walks.dtype, device=queries.device)
    start[queries, torch.arange(len(queries), device=queries.device)] = 1
    if walks.add_identity:
        yield start
    for step in steps:
        power = start
        for _ in range(walks.num_powers):
            power = torch.sparse.mm(step, power)
            yield power


def _of_queries(queries: Tensor, steps: list[Tensor], num_nodes: int, walks: Walks) -> tuple[Tensor, Tensor]:
    """Return the near pairs of some queries (2, p) and their values (p, C)."""
    first: list[Tensor] = []
    columns: list[Tensor] = []
    place = None
    for channel in _channels_of_queries(queries, steps, num_nodes, walks):
        if place is None:
            first.append(channel)
            if len(first) <= walks.k_hop and len(first) < walks.num_channels:
                continue
            place = (sum(first) > 0).T.nonzero(as_tuple=True)  # query by query
            columns = [one[place[1], place[0]] for one in first]
            first = []
        else:
            columns.append(channel[place[1], place[0]])
    return torch.stack([queries[place[0]], place[1]]), torch.stack(columns, dim=1)
