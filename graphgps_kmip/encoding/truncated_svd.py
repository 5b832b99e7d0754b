"""SVD encoding: a low-rank factor of a matrix of pairs of nodes, as columns of the node features.

GECO (Sancak et al., appendix B.1), and EGT (Hussain et al. 2022) of the adjacency matrix. Sides and matrix are not
stated by GECO: they are options here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
import scipy
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding.laplacian import random_signs
from graphgps_kmip.encoding.positional_encoding import KernelEncoder, NodeEncoding, edge_array, read_encoding
from graphgps_kmip.errors import InputError
from graphgps_kmip.ranges import Choice, whole
from graphgps_kmip.registry import register

Array = np.ndarray
Triplets = tuple[Array, Array, Array]  # left vectors (N, r), values (r,), right vectors (N, r)

DENSE = 400  # nodes of a component up to which all its values are computed, which is faster there
MAX_DENSE = 10_000  # nodes of a component whose full matrix is formed: 800 MB
NO_RANK = 1e-9  # singular values below this times the largest count as 0: eigenvalues in float64 are good to 1e-13


@register("encoding", "SVD")
class SVD(NodeEncoding):
    """Low-rank factor of a matrix of pairs of nodes: adjacency, distances or random walks (GECO).

    Args:
        rank (int, optional): Singular vectors d_r. (default: 16)
        matrix (str, optional): M, a key of `MATRICES`. (default: ``"adjacency"``)
        steps (int, optional): Steps of the matrix ``random_walk``. (default: 4)
        sides (str, optional): ``"left"``, or ``"both"`` for d_r columns of the right factor, too. (default: ``"left"``)
    """

    rank: Annotated[int, whole(1, 10_000)] = 16
    matrix: Annotated[str, Choice(("adjacency", "symmetric", "random_walk", "proximity"))] = "adjacency"
    steps: Annotated[int, whole(1, 1_000)] = 4
    sides: Annotated[str, Choice(("left", "both"))] = "left"

    @property
    def num_columns(self) -> int:
        """Return the columns of the factor, or of both."""
        return 2 * self.rank if self.sides == "both" else self.rank

    @staticmethod
    def compute(graph: Data, rank: int, matrix: str, steps: int, sides: str) -> Tensor:
        """Return the first of the `svd_factors`, or both side by side."""
        factors = svd_factors(graph.edge_index, graph.num_nodes, rank, matrix, steps=steps)
        return torch.cat(factors if sides == "both" else factors[:1], dim=1)

    def encoder(self, dim: int, dim_x: int | None) -> nn.Module:
        """Return an `SVDEncoder`."""
        return SVDEncoder(super().encoder(dim, dim_x), self.rank)


class SVDEncoder(nn.Module):
    """Map the precomputed factor of a node to ``dim_pe`` columns of its features, with random signs in training.

    They are one draw per batch and singular vector, left and right together, as those of `LapPEEncoder`.

    Shapes: batch.x (N, dim_x), batch.pestat_SVD (N, d_r or 2 d_r) -> batch.x (N, C), in the dtype of the weights.
    """

    def __init__(self, encoder: KernelEncoder, rank: int) -> None:
        super().__init__()
        self.encoder, self.rank = encoder, rank

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        name, columns = self.encoder.name, self.encoder.num_columns
        values = read_encoding(batch, name, f"pestat_{name}", (columns,), "rank")
        if self.training:
            values = values * random_signs(values[:, : self.rank]).repeat(columns // self.rank)
        return self.encoder.encode(batch, values)


def svd_factors(
    edge_index: Tensor, num_nodes: int, rank: int, matrix: str = "adjacency", *, steps: int = 4
) -> tuple[Tensor, Tensor]:
    r"""Return the factors of the best approximation of rank d_r of a matrix M of pairs of nodes.

    .. math:: M \approx U \Sigma V^T, \qquad F = U \Sigma^{1/2}, \quad G = V \Sigma^{1/2}

    with the d_r largest singular values. They are determined up to the sign of each column, the same of both factors,
    and where a singular value repeats up to a rotation; of a symmetric matrix they are eigenvectors, and of the values
    :math:`\pm\lambda` the positive comes first. Options are those of `SVD`. A repeated edge counts once. Columns after
    the numerical rank of M, or after N, are 0. No gradients.

    Shapes: edge_index (2, E) -> F (N, d_r), G (N, d_r), float64, on the CPU.

    Raises:
        InputError: an edge to a node that does not exist, or a matrix that would be too large.
    """
    edges = edge_array(edge_index, num_nodes)
    adjacency = scipy.sparse.csr_array((np.ones(edges.shape[1]), tuple(edges)), shape=(num_nodes, num_nodes))
    adjacency.data[:] = 1  # of repeated edges, which the constructor has added up
    factors = np.zeros((2, num_nodes, rank))
    if not num_nodes:
        return torch.from_numpy(factors[0]), torch.from_numpy(factors[1])
    _, label = scipy.sparse.csgraph.connected_components(adjacency, directed=False)
    components = np.split(np.argsort(label, kind="stable"), np.cumsum(np.bincount(label))[:-1])
    loops = adjacency.diagonal() > 0
    triplets = []  # value, its component, left and right vector
    for nodes in components:
        if len(nodes) > 1 or loops[nodes[0]] or matrix == "proximity":  # else its row of the matrix is 0
            left, values, right = _decompose(adjacency[nodes][:, nodes], rank, matrix, steps)
            triplets += [(value, nodes, left[:, i], right[:, i]) for i, value in enumerate(values)]
    largest = max((abs(value) for value, *_ in triplets), default=0.0)
    triplets = [triplet for triplet in triplets if abs(triplet[0]) > NO_RANK * largest]
    # Rounded, so that of +-lambda, which are equal but for the last digits, the positive one is always first.
    triplets.sort(key=lambda triplet: (-round(abs(triplet[0]) / largest, 9), triplet[0] < 0))
    for column, (value, nodes, left, right) in enumerate(triplets[:rank]):
        size = abs(value) ** 0.5
        factors[0, nodes, column] = left * size
        factors[1, nodes, column] = right * np.sign(value) * size
    return torch.from_numpy(factors[0]), torch.from_numpy(factors[1])


def _decompose(adjacency: scipy.sparse.csr_array, rank: int, matrix: str, steps: int) -> Triplets:
    """Return left vectors, values and right vectors of a component; of a symmetric matrix eigenvalues."""
    size, sparse = adjacency.shape[0], matrix in SPARSE
    few = min(rank + 1, size)  # one more, so that a pair +-lambda is not cut by chance
    whole_matrix = size <= DENSE or 4 * few > size
    if size > MAX_DENSE and not (sparse and not whole_matrix):
        raise InputError(
            f"posenc_SVD: rank {rank} of matrix {matrix} needs all {size:,} x {size:,} pairs of a component, beyond "
            f"{MAX_DENSE:,} nodes: take matrix {' or '.join(SPARSE)} and a rank below a quarter of the nodes"
        )
    values = MATRICES[matrix](adjacency, steps)
    symmetric = (adjacency != adjacency.T.tocsr()).nnz == 0 and matrix != "random_walk"
    if whole_matrix:
        values = values.toarray() if sparse else values
        if symmetric:
            return _largest_pairs(np.linalg.eigh(values), few)
        left, values, right = np.linalg.svd(values)
        return left[:, :few], values[:few], right[:few].T
    start = np.random.default_rng(0).standard_normal(size)  # a fixed one, so that results repeat
    if symmetric:
        return _largest_pairs(scipy.sparse.linalg.eigsh(values, few, which="LM", v0=start), few)
    left, values, right = scipy.sparse.linalg.svds(values, few, v0=start)
    return left[:, ::-1], values[::-1], right[::-1].T


def _largest_pairs(pairs: tuple[Array, Array], few: int) -> Triplets:
    values, vectors = pairs
    order = np.argsort(-np.abs(values), kind="stable")[:few]
    return vectors[:, order], values[order], vectors[:, order]


def _symmetric(adjacency: scipy.sparse.csr_array, _: int) -> scipy.sparse.csr_array:
    leaving, arriving = (scipy.sparse.diags_array(np.maximum(adjacency.sum(axis), 1) ** -0.5) for axis in (1, 0))
    return (leaving @ adjacency @ arriving).tocsr()


def _random_walk(adjacency: scipy.sparse.csr_array, steps: int) -> Array:
    step = adjacency.toarray()
    return np.linalg.matrix_power(step / np.maximum(step.sum(1, keepdims=True), 1), steps)


def _proximity(adjacency: scipy.sparse.csr_array, _: int) -> Array:
    return 1 / (1 + scipy.sparse.csgraph.shortest_path(adjacency, unweighted=True))  # 1 / inf is 0


# Adjacency matrix of a component (n, n) and number of steps -> matrix. adjacency: A; symmetric: D^-1/2 A D^-1/2, of a
# directed graph with the degrees of sources and of targets; random_walk: (D^-1 A)^steps; proximity: 1 / (1 + length of
# the shortest path), 0 without one, 1 of a node with itself.
MATRICES: dict[str, Callable[[scipy.sparse.csr_array, int], scipy.sparse.csr_array | Array]] = {
    "adjacency": lambda adjacency, _: adjacency,
    "symmetric": _symmetric,
    "random_walk": _random_walk,
    "proximity": _proximity,
}
SPARSE = ("adjacency", "symmetric")
