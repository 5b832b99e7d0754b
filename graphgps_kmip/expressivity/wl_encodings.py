"""Encodings for SEG-WL: ``(graph) -> Encoding`` by name, rounded so that equal values compare equal.

Computed in floating point: nodes that the mathematics makes alike get values that differ in the last digits. So all
values are rounded to `DECIMALS` decimals (see `rounded` for what that leaves open).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from graphgps_kmip.encoding.laplacian import laplacian_eigenpairs
from graphgps_kmip.encoding.random_walk import return_probabilities
from graphgps_kmip.expressivity.seg_wl import Encoding, Graph, rounded

DECIMALS = 8  # eigenvectors of such small graphs are right to 12 or more
SAME = 1e-8  # eigenvalues that are nearer are one eigenvalue
STEPS = range(1, 17)  # of random walks, as GraphGPS has them on ZINC
MAX_FREQS = 8  # eigenpairs, of the public configs


def encode(name: str, graph: Graph, decimals: int = DECIMALS) -> Encoding:
    """Return a row of `ENCODINGS` of a graph, rounded."""
    return rounded(ENCODINGS[name](graph), decimals)


def _random_walks(graph: Graph) -> Encoding:
    return Encoding(node=return_probabilities(graph.edge_index, graph.num_nodes, STEPS, dtype=torch.float64))


def _eigenpairs(graph: Graph, count: int) -> tuple[Tensor, Tensor]:
    return laplacian_eigenpairs(graph.edge_index, graph.num_nodes, count, "sym", "L2")


def _eigenvalues(graph: Graph) -> Encoding:
    """Give every node all eigenvalues of its graph."""
    found, _ = _eigenpairs(graph, graph.num_nodes)
    return Encoding(node=found.expand(graph.num_nodes, -1))


def _eigenspaces(graph: Graph) -> Encoding:
    r"""Give what eigenvectors tell whatever their signs and bases: projections :math:`P_\lambda = U U^T`.

    Of every distinct eigenvalue :math:`\lambda` node v gets :math:`\lambda, P_\lambda(v, v)`, and edge (u, v)
    :math:`P_\lambda(u, v)`.
    """
    found, vectors = _eigenpairs(graph, graph.num_nodes)
    space = torch.cat([found.new_zeros(1, dtype=torch.bool), found.diff() > SAME]).cumsum(0)  # (N,), of each vector
    source, target = graph.edge_index
    nodes, edges = [], []
    for number in range(int(space.max()) + 1):
        inside = vectors[:, space == number]
        value = found[space == number].mean()
        nodes += [value.expand(graph.num_nodes), inside.square().sum(1)]
        edges.append((inside[source] * inside[target]).sum(1))
    return Encoding(node=torch.stack(nodes, 1), edge=torch.stack(edges, 1))


def _eigenvectors(graph: Graph) -> Encoding:
    """Give what LapPE starts from: entries of the first eigenvectors and their eigenvalues, as the solver finds them.

    Signs, and the basis where an eigenvalue repeats, are the solver's choice and depend on the order of the nodes.
    """
    found, vectors = _eigenpairs(graph, MAX_FREQS)
    both = torch.stack([found.expand_as(vectors), vectors], dim=2)  # (N, K, 2)
    return Encoding(node=both.flatten(1).nan_to_num(0.0))


def hops(graph: Graph) -> Encoding:
    """Give every pair of nodes the length of the shortest path, -1 where there is none: Graphormer's encoding."""
    count = graph.num_nodes
    linked = torch.zeros(count, count, dtype=torch.bool)
    linked[graph.edge_index[1], graph.edge_index[0]] = True  # row: the node that is reached
    length, reached = torch.full((count, count), -1), torch.eye(count, dtype=torch.bool)
    for steps in range(count):
        length[reached & (length < 0)] = steps
        reached = (reached.double() @ linked.mT.double()) > 0
    return Encoding(pair=length.mT[..., None])


ENCODINGS: dict[str, Callable[[Graph], Encoding]] = {
    "none": lambda graph: Encoding(),  # noqa: ARG005
    "RWSE": _random_walks,
    "Laplacian eigenvalues": _eigenvalues,
    "Laplacian eigenspaces": _eigenspaces,
    "shortest paths": hops,  # of all pairs: what no GPS model reads
    "Laplacian eigenvectors": _eigenvectors,
}
INVARIANT = tuple(name for name in ENCODINGS if name != "Laplacian eigenvectors")  # alike for isomorphic graphs
