"""Expander graphs (Shirzad et al. 2023): random sparse graphs in which all nodes are near each other.

Differs from the public code: the generator is seeded, loops and repeated edges are removed, and a loop counts for
nothing in the spectral test; there it counts in the degrees, so that a graph in pieces can pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np
import scipy
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.encoding.positional_encoding import PositionalEncoding

LOG = logging.getLogger(__name__)
COMPLETE_AT_MOST = 10  # nodes: of the public code
SLACK = 0.1  # of the public code, below the bound of Friedman's theorem
TEST_AT_MOST = 100_000  # nodes: larger graphs are not tested (one test of 100,000 nodes takes 3 seconds)
SPARSE_NODES = 300  # from here Lanczos is faster than a dense decomposition: 2 against 7 ms at 480 nodes
TOLERANCE = 1e-6  # relative, of Lanczos

Pairs = tuple[np.ndarray, np.ndarray]


def _draw_permutations(num_nodes: int, degree: int, rng: np.random.Generator) -> Pairs:
    return np.tile(np.arange(num_nodes), degree), np.concatenate([rng.permutation(num_nodes) for _ in range(degree)])


def _draw_cycles(num_nodes: int, degree: int, rng: np.random.Generator) -> Pairs:
    cycles = [rng.permutation(num_nodes) for _ in range(degree)]
    return np.concatenate(cycles), np.concatenate([np.roll(cycle, 1) for cycle in cycles])


ALGORITHMS: dict[str, Callable[[int, int, np.random.Generator], Pairs]] = {
    "Random-d": _draw_permutations,
    "Hamiltonian": _draw_cycles,
}


class Expander(PositionalEncoding):
    """Edge set ``expander_edge_index`` of each graph (``prep.exp``); arguments of `expander_edges`."""

    deg: int = 5
    algorithm: str = "Random-d"
    max_num_iters: int = 100
    seed: int = 0
    FROM_CONFIG: ClassVar[Mapping[str, str]] = {
        "seed": "seed",
        **{name: f"prep.exp_{name}" for name in ("deg", "algorithm", "max_num_iters")},
    }
    random: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def compute(graph: Data, deg: int, algorithm: str, max_num_iters: int, seed: int) -> dict[str, Tensor]:
        """Return the `expander_edges`, which are random by seed and graph."""
        rng = expander_generator(seed, graph.graph_id)
        edges = expander_edges(graph.num_nodes, deg, algorithm, rng=rng, max_num_iters=max_num_iters)
        return {"expander_edge_index": edges}


def used_degree(degree: int, num_nodes: int) -> int:
    """Return the degree of a graph of N nodes: less than N."""
    return min(degree, num_nodes - 1)


def expander_generator(seed: int, graph_id: int) -> np.random.Generator:
    """Return the random generator of one graph of a data set."""
    return np.random.default_rng((seed, graph_id))


def _simplify(edges: np.ndarray, num_nodes: int) -> np.ndarray:
    """Drop loops and repeated edges; the rest is sorted."""
    key = edges[0] * num_nodes
    key += edges[1]
    key.sort()  # in place, as what follows: 60 million edges are 480 MB for each number; np.unique hashes: slower
    key = key[np.diff(key, prepend=-1) > 0]
    simple = np.empty((2, len(key)), key.dtype)
    np.floor_divide(key, num_nodes, out=simple[0])
    np.remainder(key, num_nodes, out=simple[1])
    loops = simple[0] == simple[1]
    return simple[:, ~loops] if loops.any() else simple


@dataclass(frozen=True)
class Expansion:
    """What is tested of a draw, and what becomes of its edges; the defaults are what `expander_edges` says.

    Args:
        compute_value (callable, optional): (edges, N) -> the value that is tested; None is `spectral_value`.
        choose_degree (callable, optional): (degree asked for, N) -> that whose `spectral_bound` the value must reach.
        simplify (callable, optional): (edges, N) -> edges; edges hold both directions, as often as they were drawn.
    """

    compute_value: Callable[[np.ndarray, int], float] | None = None
    choose_degree: Callable[[int, int], int] = used_degree
    simplify: Callable[[np.ndarray, int], np.ndarray] = _simplify


def expander_edges(
    num_nodes: int,
    degree: int = 5,
    algorithm: str = "Random-d",
    *,
    rng: np.random.Generator,
    max_num_iters: int = 100,
    check_spectrum: bool = True,
    expansion: Expansion = Expansion(),  # noqa: B008 (frozen)
) -> Tensor:
    """Draw an expander graph on the nodes of a graph: every node has about 2 ``degree`` neighbours.

    It is drawn again while the smallest non-trivial eigenvalue of D - A (edges as often as they were drawn) is below
    `spectral_bound`; where no draw passes, the best is taken, and a warning logged. Up to 10 nodes have the complete
    graph; with up to ``degree`` nodes, the degree is their number minus 1. More than 100,000 nodes are not tested.

    Args:
        num_nodes (int): N.
        degree (int, optional): Number of permutations or cycles, the config's ``prep.exp_deg``. (default: 5)
        algorithm (str, optional): Key of `ALGORITHMS`, ``prep.exp_algorithm``. (default: ``"Random-d"``)
        rng (np.random.Generator): Source of randomness, such as `expander_generator`.
        max_num_iters (int, optional): Maximum number of draws, ``prep.exp_max_num_iters``. (default: 100)
        check_spectrum (bool, optional): Test what is drawn; False takes the first draw. (default: ``True``)
        expansion (Expansion, optional): Of another code. (default: ``Expansion()``)

    Shapes: (2, E), int64: both directions of every edge; sorted.
    """
    if num_nodes <= COMPLETE_AT_MOST:
        return torch.from_numpy(np.stack(np.nonzero(~np.eye(num_nodes, dtype=bool))))
    if check_spectrum and num_nodes > TEST_AT_MOST:
        LOG.info("expander of %d nodes: more than %d are not tested", num_nodes, TEST_AT_MOST)
    bound = spectral_bound(expansion.choose_degree(degree, num_nodes))
    tested = check_spectrum and bound > 0 and num_nodes <= TEST_AT_MOST  # of degree 1 everything passes
    compute_value = expansion.compute_value or spectral_value
    best, best_value = None, -np.inf
    for _ in range(max_num_iters):
        start, end = ALGORITHMS[algorithm](num_nodes, used_degree(degree, num_nodes), rng)
        edges = np.stack([np.concatenate([start, end]), np.concatenate([end, start])])
        value = compute_value(edges, num_nodes) if tested else np.inf
        if best is None or value > best_value:
            best, best_value = edges, value
        if value >= bound:
            break
    else:
        LOG.warning(
            "expander of %d nodes: none of %d draws reached %.3f; the best (%.3f) is kept",
            *(num_nodes, max_num_iters, bound, best_value),
        )
    return torch.from_numpy(expansion.simplify(best, num_nodes))


def spectral_bound(degree: int) -> float:
    """Return the smallest eigenvalue that passes, ``max(0, 2 d - 2 sqrt(2 d - 1) - 0.1)`` (Friedman's theorem)."""
    return max(0.0, 2 * degree - 2 * sqrt(2 * degree - 1) - SLACK)


def spectral_value(edges: np.ndarray, num_nodes: int) -> float:
    """Return the second smallest eigenvalue of D - A, where both count repeated edges and no loops.

    Shapes: edges (2, E), both directions of every edge; 2 nodes or more.
    """
    adjacency = adjacency_without_loops(edges, num_nodes)
    if scipy.sparse.csgraph.connected_components(adjacency, directed=False, return_labels=False) > 1:
        return 0.0  # Lanczos could miss a copy of the eigenvalue 0
    return second_eigenvalue(adjacency.sum(axis=1), adjacency)


def adjacency_without_loops(edges: np.ndarray, num_nodes: int) -> scipy.sparse.csr_array:
    """Return how often each pair of different nodes is drawn, (N, N)."""
    edges = edges[:, edges[0] != edges[1]]
    return scipy.sparse.csr_array((np.ones(edges.shape[1]), tuple(edges)), shape=(num_nodes, num_nodes))


def second_eigenvalue(degree: np.ndarray, adjacency: scipy.sparse.csr_array) -> float:
    """Return the second smallest eigenvalue of D - A: dense below `SPARSE_NODES` nodes, then by Lanczos."""
    num_nodes = len(degree)
    node = np.arange(num_nodes)
    matrix = scipy.sparse.csr_array((degree, (node, node)), shape=adjacency.shape) - adjacency
    if num_nodes < SPARSE_NODES:
        return float(scipy.linalg.eigvalsh(matrix.toarray(), subset_by_index=[1, 1], check_finite=False)[0])
    start = np.random.default_rng(0).standard_normal(num_nodes)
    how = {"which": "SA", "v0": start, "tol": TOLERANCE, "return_eigenvectors": False}
    return float(scipy.sparse.linalg.eigsh(matrix, k=2, **how).max())
