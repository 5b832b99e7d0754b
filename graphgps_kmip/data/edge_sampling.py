r"""Sampling of in-edges without replacement, by attention scores: weighted reservoir, uniform, or the k largest.

Draws in proportion to scores p are the k smallest of :math:`-\ln(u) / p` (Efraimidis and Spirakis 2006, Inf. Process.
Lett. 97), u a function of (seed, node, place of the edge in the node's list): the same in whatever batch, thread or
process. A C loop (``ops/native/edge_sampling.c``) and, without a compiler, numpy draw the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphgps_kmip.data.score_file import LayerScores
from graphgps_kmip.ops.native import load, pointer, unavailable_reason

HOW = ("reservoir", "uniform", "max")
EPS = 1e-8  # added to each score, as in the public code: edges of score 0 can be drawn
CELLS = 2**18  # (node, edge) pairs that numpy draws again at a time: 2 MiB for each number of a pair
EDGE_WORK = 10_000  # edges that take about as long as starting a thread (20 us)
KERNEL = ("edge_sampling", "-ffp-contract=off")  # each operation rounded by itself, as in numpy

# SplitMix64 (Steele, Lea and Flood 2014): a counter in steps of the golden ratio, through a mixing function.
GOLDEN, FACTORS = np.uint64(0x9E3779B97F4A7C15), (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def draw_edges(
    layer: LayerScores, k: int, how: str, rng_seed: Sequence[int], nodes: Tensor | None = None, repeat: bool = False
) -> tuple[Tensor, Tensor]:
    r"""Draw k edges into each node, without replacement.

    ``reservoir`` draws with probabilities proportional to the scores :math:`p + 10^{-8}`: the k smallest of
    :math:`-\ln(u) / (p + 10^{-8})`; ``uniform`` with equal ones; ``max`` takes the k largest scores, of equal ones
    the first. Nodes with at most k edges keep all of them.

    Args:
        layer (LayerScores): edges and scores.
        k (int): edges of each node, 1 or more.
        how (str): "reservoir", "uniform" or "max".
        rng_seed (Sequence[int]): numbers of 0 or more, always equally many: seed, epoch, layer, ...
        nodes (Tensor, optional): nodes to draw for, in any order; None: all, from 0 on. (default: None)
        repeat (bool, optional): where a node has fewer than k edges, draw the missing ones among them with replacement
            (uniformly for ``uniform``, else in proportion to the scores), as in the public code. (default: False)

    Returns:
        Ids of edges of the layer, node by node, and how many each node has. The ids of a node increase; repeated ones
        follow in the order in which they were drawn.

    Shapes: nodes (n,) -> ids (S,), counts (n,), both int64. Cost O(edges of the nodes).
    """
    rows = torch.arange(layer.num_nodes) if nodes is None else nodes.contiguous()
    degree = layer.ptr[rows + 1] - layer.ptr[rows]
    counts = k * (degree > 0) if repeat else degree.clamp(max=k)
    end = counts.cumsum(0)
    ids = torch.empty(int(end[-1]) if len(rows) else 0, dtype=torch.long)
    if len(ids):
        base = int(np.random.SeedSequence(tuple(rng_seed)).generate_state(1, np.uint64)[0])
        draw = _Draw(layer, k, how, base, rows, degree, end - counts, repeat)
        (_draw_by_numpy if unavailable_reason(*KERNEL) else _draw_by_kernel)(draw, ids)
    return ids, counts


class _Draw(NamedTuple):
    layer: LayerScores
    k: int
    how: str
    base: int  # of the random numbers
    rows: Tensor
    degree: Tensor
    begin: Tensor
    repeat: bool


def _draw_by_kernel(draw: _Draw, ids: Tensor) -> None:
    number, long, layer, largest = ctypes.c_int, ctypes.c_int64, draw.layer, int(draw.degree.max())
    failed = load(*KERNEL).draw_edges(
        *map(pointer, (layer.ptr, layer.score, draw.rows, draw.begin)),
        *map(long, (len(draw.rows), largest, min(draw.k, 2**62))),
        *(number(HOW.index(draw.how)), number(draw.repeat), ctypes.c_uint64(draw.base), ctypes.c_double(EPS)),
        number(min(torch.get_num_threads(), 1 + int(draw.degree.sum()) // EDGE_WORK)),
        pointer(ids),
    )
    if failed:
        raise MemoryError(f"drawing edges of a node that has {largest}")


def _draw_by_numpy(draw: _Draw, ids: Tensor) -> None:
    rows, degree, begin, k = draw.rows.numpy(), draw.degree.numpy(), draw.begin.numpy(), draw.k
    first, state = draw.layer.ptr[draw.rows].numpy(), node_states(draw.base, rows)
    node = np.repeat(np.arange(len(rows)), degree)  # (E,) of each edge, as are the next ones
    place = np.arange(len(node)) - np.repeat(degree.cumsum() - degree, degree)  # among the edges of its node
    edge = first[node] + place
    score = draw.layer.score.numpy()[edge].astype(np.float64)
    if draw.how == "max":
        key = -score
    else:
        u = uniform_numbers(state[node], place)
        key = u if draw.how == "uniform" else negative_log(u) / (score + EPS)
    smallest = np.sort(np.lexsort((key, node))[place < k])  # sorted by node, `place` is the rank of a key
    counts = np.minimum(degree, k)
    rank = np.arange(len(smallest)) - np.repeat(counts.cumsum() - counts, counts)
    out = ids.numpy()
    out[begin[node[smallest]] + rank] = edge[smallest]
    if draw.repeat:
        short = ((0 < degree) & (degree < k)).nonzero()[0]
        step = max(1, CELLS // k)
        for at in range(0, len(short), step):
            group = short[at : at + step]
            missing = np.arange(k) >= degree[group, None]
            again = first[group, None] + _draw_again(draw, first[group], degree[group], state[group])
            out[(begin[group, None] + np.arange(k))[missing]] = again[missing]


def _draw_again(draw: _Draw, first: np.ndarray, degree: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Return places of k edges of each node, which has fewer, drawn with replacement: (n,) -> (n, k)."""
    place, degree = np.arange(draw.k), degree[:, None]
    u = uniform_numbers(state[:, None], place)
    if draw.how == "uniform":
        drawn = (u * degree).astype(np.int64)
    else:
        ids = np.where(place < degree, first[:, None] + place, 0)
        score = draw.layer.score.numpy()[ids].astype(np.float64)
        below = np.where(place < degree, score + EPS, 0).cumsum(axis=1)
        drawn = (below[:, None, :] <= (u * below[:, -1:])[:, :, None]).sum(axis=2)
    return np.minimum(drawn, degree - 1)  # a product may be rounded up to the end


def node_states(base: int, nodes: np.ndarray) -> np.ndarray:
    """Return the state of each node's random numbers, (n,) -> (n,) uint64."""
    return _mix(np.uint64(base) + GOLDEN * (nodes.astype(np.uint64) + np.uint64(1)))


def uniform_numbers(state: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return numbers between 0 and 1, both excluded: number ``place`` of the node of a state.

    Shapes: state and place of shapes that broadcast, uint64 and int64 -> float64.
    """
    bits = _mix(state + GOLDEN * (place.astype(np.uint64) + np.uint64(1)))
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _mix(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ (bits >> SHIFTS[0])) * FACTORS[0]
    bits = (bits ^ (bits >> SHIFTS[1])) * FACTORS[1]
    return bits ^ (bits >> SHIFTS[2])


def negative_log(u: np.ndarray) -> np.ndarray:
    r"""Return :math:`-\ln u` of numbers between 0 and 1, by the operations of the C kernel in their order.

    With u = 2^e m and m in [sqrt(1/2), sqrt(2)), ln m = 2 artanh s, s = (m - 1) / (m + 1), a series of 12 terms;
    a library's logarithm may differ in the last digit, from one to the next.
    """
    bits = u.view(np.int64)
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = (bits - (exponent << 52)).view(np.float64)
    s = (m - 1) / (m + 1)
    series = np.full_like(s, 1 / 23)
    for odd in range(21, 0, -2):
        series = series * (s * s) + 1 / odd
    return -(exponent * float.fromhex("0x1.62E42FEFA39EFp-1") + (s + s) * series)
