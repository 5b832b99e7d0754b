"""Statistics of nodes: Degree, local degree profile LDP (Cai and Wang 2018), heat kernels and electrostatics.

HKdiagSE and ElstaticSE are those of GraphGPS (Rampášek et al. 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.utils import scatter

from graphgps_kmip.encoding.positional_encoding import ColumnEncoder, NodeEncoding, PositionalEncoding, read_encoding
from graphgps_kmip.encoding.random_walk import Times, TimesEncoding
from graphgps_kmip.errors import InputError
from graphgps_kmip.ranges import WIDTH, whole
from graphgps_kmip.registry import register

ZERO = 1e-8  # eigenvalues up to this one belong to the constant vectors of the components and are left out
MAX_NODES = 20_000  # a dense float64 matrix of 3.2 GB, and its eigenvectors as much again


@register("encoding", "Degree")
class Degree(PositionalEncoding):
    """Embedding of the degree (ours)."""

    dim_pe: Annotated[int, WIDTH] = 16
    max_degree: Annotated[int, whole(0, 1_000_000)] = 63

    def settings(self) -> dict[str, int]:
        """Return nothing: every graph has its degrees."""
        return {}

    @staticmethod
    def compute(graph: Data) -> dict[str, Tensor]:
        """Return `out_degrees`."""
        return {"pestat_Degree": out_degrees(graph.edge_index, graph.num_nodes)}

    def encoder(self, dim: int, dim_x: int | None) -> nn.Module:
        """Return a `DegreeEncoder`."""
        return DegreeEncoder(self, dim, dim_x)


@register("encoding", "LDP")
class LDP(NodeEncoding):
    """Degree, and statistics of the neighbours' degrees (ours; Cai and Wang 2018)."""

    num_columns: ClassVar[int] = 5

    @staticmethod
    def compute(graph: Data) -> Tensor:
        """Return the `local_degree_profile`."""
        return local_degree_profile(graph.edge_index, graph.num_nodes)


def out_degrees(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return the number of edges that leave each node: (2, E) -> (N,), int64."""
    return torch.bincount(edge_index[0], minlength=num_nodes)


def local_degree_profile(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return the out-degree of each node, and minimum, maximum, mean and standard deviation of its successors'.

    The standard deviation divides by the number of successors; without successors all are 0.

    Shapes: edge_index (2, E) -> (N, 5), float64.
    """
    row, column = edge_index
    degree = out_degrees(edge_index, num_nodes).double()
    reduce_rows = partial(scatter, index=row, dim_size=num_nodes)
    successors = degree[column]  # (E,)
    mean = reduce_rows(successors, reduce="mean")
    deviation = reduce_rows((successors - mean[row]).square(), reduce="mean").sqrt()
    minimum, maximum = (reduce_rows(successors, reduce=kind) for kind in ("min", "max"))
    return torch.stack([degree, minimum, maximum, mean, deviation], dim=1)


class DegreeEncoder(ColumnEncoder):
    """Look up a learned vector for min(degree, max_degree) and append it; arguments as of `ColumnEncoder`.

    Shapes: batch.x (N, dim_x), batch.pestat_Degree (N,), integers -> batch.x (N, C), in the dtype of the weights.
    """

    def __init__(self, encoding: Degree, dim: int, dim_x: int | None) -> None:
        super().__init__(encoding, dim, dim_x)
        self.encoder = nn.Embedding(encoding.max_degree + 1, encoding.dim_pe)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        degrees = read_encoding(batch, "Degree", "pestat_Degree", ())
        return self.append(batch, self.encoder(degrees.clamp(max=self.encoder.num_embeddings - 1)))


@register("encoding", "HKdiagSE")
class HKdiagSE(TimesEncoding):
    """Diagonals of heat kernels."""

    @staticmethod
    def compute(graph: Data, times: Sequence[float]) -> Tensor:
        """Return the `heat_kernel_diagonal`."""
        return heat_kernel_diagonal(graph.edge_index, graph.num_nodes, times)


def heat_kernel_diagonal(edge_index: Tensor, num_nodes: int, times: Sequence[float]) -> Tensor:
    r"""Return :math:`\sum_{\lambda_i > 10^{-8}} e^{-t \lambda_i} \phi_i(v)^2` of each node v and time t.

    The sum runs over the eigenpairs of D - A, without the constant vectors. A directed graph is made undirected.

    Shapes: edge_index (2, E) -> (N, len(times)), float64.
    """
    values, vectors = torch.linalg.eigh(undirected_laplacian(edge_index, num_nodes))
    decay = torch.exp(-values[:, None] * torch.tensor(times, dtype=torch.float64))  # (N, len(times))
    decay[values <= ZERO] = 0
    return vectors.square() @ decay


def undirected_laplacian(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return D - A in float64, (2, E) -> (N, N); self-loops cancel; pairs of a directed graph count once."""
    if num_nodes > MAX_NODES:
        raise InputError(
            f"HKdiagSE and ElstaticSE need a dense matrix of all pairs of nodes, possible up to {MAX_NODES} nodes, "
            f"got {num_nodes}: use RWSE for a graph of this size"
        )
    row, column = edge_index.cpu()
    adjacency = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    adjacency.index_put_((row, column), torch.ones(len(row), dtype=torch.float64), accumulate=True)
    if not torch.equal(adjacency, adjacency.T):
        adjacency = ((adjacency + adjacency.T) > 0).double()
    return torch.diag(adjacency.sum(1)) - adjacency


@register("encoding", "ElstaticSE")
class ElstaticSE(TimesEncoding):
    """Statistics of electrostatic potentials."""

    kernel: Times = Times(times_func="range(10)")  # of the public files, and without influence
    num_columns: ClassVar[int] = 10

    def settings(self) -> dict[str, Any]:
        """Return nothing: the graph alone decides the values."""
        return {}

    @staticmethod
    def compute(graph: Data) -> Tensor:
        """Return the `electrostatic_statistics`."""
        return electrostatic_statistics(graph.edge_index, graph.num_nodes)


def electrostatic_statistics(edge_index: Tensor, num_nodes: int) -> Tensor:
    r"""Return ten statistics of the potentials :math:`G_{ij} = L^+_{ij} - L^+_{jj}` at node i of a charge at node j.

    For node v: minimum, maximum, mean and standard deviation of column v of G; minimum of row v; maximum of column v
    once more (as the public code, which means that of row v); mean and standard deviation of row v; the sums of column
    v and of row v of G, weighted entry by entry with D^-1 A. Of an isolated node the sums are 0 (the public code gives
    NaN to its whole graph), and of a single node the deviations. Directed graphs are made undirected.

    Shapes: edge_index (2, E) -> (N, 10), float64.
    """
    if num_nodes == 0:
        return torch.zeros(0, 10, dtype=torch.float64)
    laplacian = undirected_laplacian(edge_index, num_nodes)
    inverse = torch.linalg.pinv(laplacian, hermitian=True)  # cuts at N eps: zero eigenvalues really become zero
    potential = inverse - inverse.diagonal()
    degree = laplacian.diagonal()
    weights = (torch.diag(degree) - laplacian) / degree.clamp(min=1)[:, None]  # D^-1 A
    near = weights * potential
    highest, columns = potential.amax(0), []
    for dim in (0, 1):
        deviation = potential.std(dim, correction=int(num_nodes > 1))
        columns += [potential.amin(dim), highest, potential.mean(dim), deviation]
    return torch.stack([*columns, near.sum(0), near.sum(1)], dim=1)
