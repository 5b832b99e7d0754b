"""Electrostatic encoding of nodes (ElstaticSE): potentials between unit charges on the nodes, as in GraphGPS."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.encoding.heat_kernel import undirected_laplacian
from graphgps_kmip.encoding.random_walk import Times, TimesEncoding
from graphgps_kmip.registry import register

NUM_COLUMNS = 10


@register("encoding", "ElstaticSE")
class ElstaticSE(TimesEncoding):
    """Statistics of electrostatic potentials."""

    kernel: Times = Times(times_func="range(10)")  # of the public files, and without influence
    num_columns: ClassVar[int] = NUM_COLUMNS

    def settings(self) -> dict[str, Any]:
        """Return nothing: the graph alone decides the values."""
        return {}

    @staticmethod
    def compute(graph: Data) -> Tensor:
        """Return the `electrostatic_statistics`."""
        return electrostatic_statistics(graph.edge_index, graph.num_nodes)


def electrostatic_statistics(edge_index: Tensor, num_nodes: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    r"""Return ten statistics of the potentials :math:`G_{ij} = L^+_{ij} - L^+_{jj}` at node i of a charge at node j.

    For node v: minimum, maximum, mean and standard deviation of column v of G; minimum of row v; maximum of column v
    once more (the public code means that of row v; no potential is above that of the charge's own node, so all of them
    are 0); mean and standard deviation of row v; the sums of column v and of row v of G, weighted entry by entry with
    D^-1 A.

    An isolated node has no neighbours to weigh: 0 (the public code gives NaN to its whole graph). The standard
    deviation over a single node is 0 as well.

    Args:
        edge_index (Tensor): Edges of one graph; a directed graph is made undirected.
        num_nodes (int): N.
        dtype (dtype, optional): Of the result; everything is computed in float64. (default: ``torch.float32``)

    Shapes: edge_index (2, E) -> (N, 10).

    Raises:
        InputError: more nodes than a dense matrix can hold.
    """
    if num_nodes == 0:
        return torch.zeros(0, NUM_COLUMNS, dtype=dtype)
    laplacian = undirected_laplacian(edge_index, num_nodes)
    inverse = torch.linalg.pinv(laplacian, hermitian=True)  # cuts at N eps: zero eigenvalues really become zero
    potential = inverse - inverse.diagonal()
    degree = laplacian.diagonal()
    weights = (torch.diag(degree) - laplacian) / degree.clamp(min=1)[:, None]  # D^-1 A
    near = weights * potential
    correction = int(num_nodes > 1)
    return torch.stack(
        [
            potential.amin(0),
            potential.amax(0),
            potential.mean(0),
            potential.std(0, correction=correction),
            potential.amin(1),
            potential.amax(0),
            potential.mean(1),
            potential.std(1, correction=correction),
            near.sum(0),
            near.sum(1),
        ],
        dim=1,
    ).to(dtype)
