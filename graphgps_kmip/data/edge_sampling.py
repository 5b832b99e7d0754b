r"""Sampling of in-edges without replacement, by attention scores: weighted reservoir, uniform, or the k largest.

Low-width score estimation (workshop paper of Exphormer's authors, section 3) keeps k of the edges into each node. They
are drawn without replacement with probabilities proportional to the scores, one edge after the other, which is the same
as the k smallest of independent exponential variables :math:`-\ln(u) / p` (Efraimidis and Spirakis 2006, Inf. Process.
Lett. 97).

Random numbers are a function of (seed, node, place of the edge in the node's list), see `uniform_numbers`: the sample
of a node is the same in whatever batch, order, thread or process it is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from graphgps_kmip.data.score_file import LayerScores
from graphgps_kmip.errors import InputError

HOW = ("reservoir", "uniform", "max")
EPS = 1e-8  # added to each score, as in the public code: edges of score 0 can be drawn
CELLS = 2**18  # (node, edge) pairs that are drawn at a time: 2 MiB for each number of a pair

# SplitMix64 (Steele, Lea and Flood 2014): a counter in steps of the golden ratio, through a mixing function.
GOLDEN, FACTORS = np.uint64(0x9E3779B97F4A7C15), (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def draw_edges(
    layer: LayerScores,
    k: int,
    how: str,
    rng_seed: Sequence[int],
    nodes: Tensor | None = None,
    repeat: bool = False,
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
        repeat (bool, optional): where a node has fewer than k edges, but one at least, draw the missing ones among
            them with replacement (uniformly for ``uniform``, else in proportion to the scores), so that each of these
            nodes has k, as in the public code. (default: False)

    Returns:
        Ids of edges of the layer, node by node, and how many each node has. The ids of a node increase; repeated ones
        follow in the order in which they were drawn.

    Shapes: nodes (n,) -> ids (S,), counts (n,), both int64. Cost O(edges of the nodes).

    Raises:
        ValueError: k, how or nodes are not allowed.
    """
    if k < 1:
        raise InputError(f"spexphormer.degree: the number of edges to draw must be 1 or more, got {k}")
    if how not in HOW:
        raise InputError(f"spexphormer.sampler: edges are drawn by one of {', '.join(HOW)}, got {how!r}")
    num_nodes = len(layer.ptr) - 1
    rows = np.arange(num_nodes) if nodes is None else nodes.numpy()
    if len(rows) and not 0 <= rows.min() <= rows.max() < num_nodes:
        raise InputError(
            f"nodes must be in 0..{num_nodes - 1}, got {rows.min()}..{rows.max()}: give nodes of the graph"
        )
    ptr = layer.ptr.numpy()
    first, degree = ptr[rows], ptr[rows + 1] - ptr[rows]
    kept = np.minimum(degree, k)
    counts = np.where(degree > 0, k, 0) if repeat else kept
    begin = counts.cumsum() - counts
    ids = np.empty(counts.sum(), dtype=np.int64)
    state = node_states(rng_seed, rows)
    for group in _groups(degree):
        found = _smallest(layer, k, how, state[group], first[group], degree[group])
        column = np.arange(found.shape[1])
        taken = column < kept[group, None]
        ids[(begin[group, None] + column)[taken]] = (first[group, None] + found)[taken]
    if repeat:
        short = ((0 < degree) & (degree < k)).nonzero()[0]
        for group in _chunks(short, k):
            _fill(ids, layer, k, how, state[group], first[group], degree[group], begin[group])
    return torch.from_numpy(ids), torch.from_numpy(counts)


def node_states(rng_seed: Sequence[int], nodes: np.ndarray) -> np.ndarray:
    """Return the state of the random numbers of each node, (n,) -> (n,) uint64."""
    base = np.random.SeedSequence(tuple(rng_seed)).generate_state(1, np.uint64)[0]
    return _mixed(base + GOLDEN * (nodes.astype(np.uint64) + np.uint64(1)))


def uniform_numbers(state: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return numbers between 0 and 1, both excluded: number ``place`` of the node of a state.

    Shapes: state and place of shapes that broadcast, uint64 and int64 -> float64.
    """
    bits = _mixed(state + GOLDEN * (place.astype(np.uint64) + np.uint64(1)))
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _mixed(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ (bits >> SHIFTS[0])) * FACTORS[0]
    bits = (bits ^ (bits >> SHIFTS[1])) * FACTORS[1]
    return bits ^ (bits >> SHIFTS[2])


def _groups(degree: np.ndarray) -> Iterator[np.ndarray]:
    """Yield groups of nodes with about equally many edges, in chunks of bounded size; those without edges are left out.

    Rows of one matrix hold the edges of a group, so that at most half of it is empty.
    """
    size = np.frexp(degree.astype(np.float64))[1]  # 2^(size - 1) <= degree < 2^size
    for wanted in np.unique(size[degree > 0]):
        yield from _chunks((size == wanted).nonzero()[0], 2 ** int(wanted))


def _chunks(nodes: np.ndarray, width: int) -> Iterator[np.ndarray]:
    step = max(1, CELLS // width)
    return (nodes[at : at + step] for at in range(0, len(nodes), step))


def _smallest(
    layer: LayerScores, k: int, how: str, state: np.ndarray, first: np.ndarray, degree: np.ndarray
) -> np.ndarray:
    """Return the places of the k smallest keys of each node in its list, increasing: (n,) -> (n, k or fewer).

    A row of fewer edges than columns ends with places behind its list.
    """
    place = np.arange(degree.max())
    if len(place) <= k:
        return np.broadcast_to(place, (len(first), len(place)))
    inside = place < degree[:, None]
    if how == "uniform":
        keys = uniform_numbers(state[:, None], place)
    else:
        score = layer.score.numpy()[np.where(inside, first[:, None] + place, 0)].astype(np.float64)
        keys = -score if how == "max" else -np.log(uniform_numbers(state[:, None], place)) / (score + EPS)
    keys[~inside] = np.inf
    return np.sort(keys.argsort(axis=1, kind="stable")[:, :k], axis=1)


def _fill(
    ids: np.ndarray,
    layer: LayerScores,
    k: int,
    how: str,
    state: np.ndarray,
    first: np.ndarray,
    degree: np.ndarray,
    begin: np.ndarray,
) -> None:
    """Write edges drawn with replacement behind those of nodes that have fewer than k."""
    place = np.arange(k)
    inside = place < degree[:, None]
    u = uniform_numbers(state[:, None], place)  # numbers 0 to degree - 1 belong to the edges
    if how == "uniform":
        drawn = (u * degree[:, None]).astype(np.int64)
    else:
        score = layer.score.numpy()[np.where(inside, first[:, None] + place, 0)].astype(np.float64) + EPS
        below = np.where(inside, score, 0).cumsum(axis=1)
        bound = u * below[:, -1:]
        drawn = (below[:, None, :] <= bound[:, :, None]).sum(axis=2)
    drawn = np.minimum(drawn, degree[:, None] - 1)  # a product may be rounded up to the end
    ids[(begin[:, None] + place)[~inside]] = (first[:, None] + drawn)[~inside]
