"""Heat kernel encoding (HKdiagSE): diagonals of the heat kernel, as in GraphGPS (Rampášek et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.encoding.random_walk import TimesEncoding
from graphgps_kmip.errors import InputError
from graphgps_kmip.registry import register

ZERO = 1e-8  # eigenvalues up to this one belong to the constant vectors of the components and are left out
MAX_NODES = 20_000  # a dense float64 matrix of 3.2 GB, and its eigenvectors as much again


@register("encoding", "HKdiagSE")
class HKdiagSE(TimesEncoding):
    """Diagonals of heat kernels."""

    @staticmethod
    def compute(graph: Data, times: Sequence[float]) -> Tensor:
        """Return the `heat_kernel_diagonal`."""
        return heat_kernel_diagonal(graph.edge_index, graph.num_nodes, times)


def heat_kernel_diagonal(
    edge_index: Tensor, num_nodes: int, times: Sequence[float], *, dtype: torch.dtype = torch.float32
) -> Tensor:
    r"""Return :math:`\sum_{\lambda_i > 10^{-8}} e^{-t \lambda_i} \phi_i(v)^2` of each node v and time t.

    The sum runs over the eigenpairs of D - A, without the constant vectors, so it decreases to 0 as t grows.

    Args:
        edge_index (Tensor): Edges of one graph; a directed graph is made undirected.
        num_nodes (int): N.
        times (Sequence[float]): t, one column each, in this order.
        dtype (dtype, optional): Of the result; the eigenvectors are computed in float64. (default: ``torch.float32``)

    Shapes: edge_index (2, E) -> (N, len(times)).

    Raises:
        InputError: no times, or more than `MAX_NODES` nodes.
    """
    if not len(times):
        raise InputError("kernel.times must hold one or more times, got none")
    values, vectors = torch.linalg.eigh(undirected_laplacian(edge_index, num_nodes))
    decay = torch.exp(-values[:, None] * torch.tensor(times, dtype=torch.float64))  # (N, len(times))
    decay[values <= ZERO] = 0
    return (vectors.square() @ decay).to(dtype)


def undirected_laplacian(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return D - A in float64; self-loops cancel.

    A repeated edge counts as often as it occurs, but in a directed graph each connected pair counts once, as in
    the public code.

    Shapes: edge_index (2, E) -> (N, N).

    Raises:
        InputError: more than `MAX_NODES` nodes.
    """
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
