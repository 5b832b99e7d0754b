"""Propagation without parameters: each node gets the weighted sum of its in-neighbours' features, ``A x``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import embedding_bag

from graphgps_kmip.common.host_copies import counts
from graphgps_kmip.common.near_misses import look_up

CHUNK_NUMBERS = 2**25  # of gathered features at a time, where no list of each node is made: 128 MB of float32
INT32 = 2**31 - 1


def _symmetric(source: Tensor, target: Tensor, num_nodes: int, dtype: torch.dtype) -> Tensor:
    outward, inward = (counts(ends, num_nodes).to(dtype) for ends in (source, target))
    return (outward[source] * inward[target]).rsqrt()


def _mean(source: Tensor, target: Tensor, num_nodes: int, dtype: torch.dtype) -> Tensor:  # noqa: ARG001
    return counts(target, num_nodes).to(dtype).reciprocal()[target]


def _sum(source: Tensor, target: Tensor, num_nodes: int, dtype: torch.dtype) -> Tensor:  # noqa: ARG001
    return torch.ones(len(source), dtype=dtype, device=source.device)


ADJACENCIES = {"symmetric": _symmetric, "mean": _mean, "sum": _sum}


def adjacency_weights(edge_index: Tensor, num_nodes: int, kind: str, dtype: torch.dtype) -> Tensor:
    r"""Return the weight of each edge j -> i in a normalised adjacency matrix, without self loops.

    ``symmetric`` is :math:`1 / \sqrt{d_j d_i}` with the number of edges out of j and into i (GCN, for undirected
    graphs), ``mean`` :math:`1 / d_i`, ``sum`` 1.

    Shapes: edge_index (2, E); returns (E,).

    Raises:
        ValueError: no such kind, with near misses.
    """
    return look_up(ADJACENCIES, kind, "adjacency")(*edge_index, num_nodes, dtype)


@dataclass
class WeightedEdges:
    """Edges of one graph, or of a batch, sorted when a sum first needs it and kept for the next ones.

    Args:
        edge_index (Tensor): source and target of each edge, in any order.
        num_nodes (int): N.
        weight (Tensor, optional): of each edge; no gradient flows to it. (default: 1 each)

    Shapes: edge_index (2, E), weight (E,).
    """

    edge_index: Tensor
    num_nodes: int
    weight: Tensor | None = None

    @cached_property
    def reversed(self) -> WeightedEdges:
        """The same edges from target to source."""
        return WeightedEdges(self.edge_index.flip(0), self.num_nodes, self.weight)

    @cached_property
    def lists(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Sources target by target (E,), where each target's list starts and the last ends (N + 1,), weights (E,)."""
        source, target = self.edge_index
        kind = torch.int32 if max(len(source), self.num_nodes) < INT32 else torch.int64
        order = target.to(kind).argsort(stable=True)
        ends = torch.zeros(self.num_nodes + 1, dtype=kind, device=source.device)
        ends[1:] = counts(target, self.num_nodes).cumsum(0)
        return source.to(kind)[order], ends, None if self.weight is None else self.weight[order]


def propagate(x: Tensor, edges: WeightedEdges) -> Tensor:
    r"""Return :math:`y_i = \sum_{j \to i} w_{ji} x_j`; no tensor of size edges times channels is kept.

    Half-precision features are summed in float32. Gradients flow to x, as often as wanted, and not to the weights.

    Shapes: x (N, C); returns (N, C).
    """
    return _Propagate.apply(x, edges)


class _Propagate(Function):
    @staticmethod
    def forward(x: Tensor, edges: WeightedEdges) -> Tensor:
        """Shapes: x (N, C); returns (N, C)."""
        sums = sums_of_lists if x.device.type == "cpu" else sums_of_chunks
        return sums(x.to(torch.promote_types(x.dtype, torch.float32)), edges).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, WeightedEdges], output: Tensor) -> None:  # noqa: ARG004
        """Keep the edges."""
        ctx.edges = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Propagate the gradient along the reversed edges."""
        return _Propagate.apply(grad, ctx.edges.reversed), None


def sums_of_lists(x: Tensor, edges: WeightedEdges) -> Tensor:
    """Sum node by node, over the list of its edges: no row is written twice, no feature is copied."""
    if not edges.edge_index.size(1):
        return torch.zeros_like(x)
    source, ends, weight = edges.lists
    weight = None if weight is None else weight.to(x.dtype)
    return embedding_bag(source, x, ends, mode="sum", per_sample_weights=weight, include_last_offset=True)


def sums_of_chunks(x: Tensor, edges: WeightedEdges) -> Tensor:
    """Sum by adding some edges at a time, in any order: nothing is sorted."""
    out, (source, target) = torch.zeros_like(x), edges.edge_index
    step = max(1, CHUNK_NUMBERS // max(1, x.size(1)))
    for start in range(0, len(source), step):
        part = slice(start, start + step)
        some = x[source[part]]
        out.index_add_(0, target[part], some if edges.weight is None else some.mul_(edges.weight[part, None]))
    return out
