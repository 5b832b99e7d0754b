"""Propagation without parameters: each node gets the weighted sum of its in-neighbours' features, ``A x``."""

from __future__ import annotations

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


def propagate(x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
    r"""Return :math:`y_i = \sum_{j \to i} w_{ji} x_j`; no tensor of size edges times channels is kept.

    Half-precision features are summed in float32. Gradients flow to x, as often as wanted, and not to the weights.

    Args:
        x (Tensor): features of nodes.
        edge_index (Tensor): source and target of each edge, in any order.
        weight (Tensor): of each edge.

    Shapes: x (N, C), edge_index (2, E), weight (E,); returns (N, C).
    """
    return _Propagate.apply(x, edge_index[0], edge_index[1], weight)


class _Propagate(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Shapes: x (N, C), source, target, weight (E,); returns (N, C)."""
        ctx.save_for_backward(source, target, weight)
        wide = torch.promote_types(x.dtype, torch.float32)
        sums = sums_of_lists if x.device.type == "cpu" else sums_of_chunks
        return sums(x.to(wide), source, target, weight.to(wide)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Propagate the gradient along the reversed edges."""
        source, target, weight = ctx.saved_tensors
        return _Propagate.apply(grad, target, source, weight), None, None, None


def sums_of_lists(x: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Sum node by node, over the list of its edges: no row is written twice, no feature is copied."""
    if not len(source):
        return torch.zeros_like(x)
    kind = torch.int32 if max(len(source), len(x)) < INT32 else torch.int64
    order = target.to(kind).argsort(stable=True)
    ends = torch.zeros(len(x) + 1, dtype=kind, device=x.device)
    ends[1:] = counts(target, len(x)).cumsum(0)
    source, weight = source.to(kind)[order], weight[order]
    return embedding_bag(source, x, ends, mode="sum", per_sample_weights=weight, include_last_offset=True)


def sums_of_chunks(x: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Sum by adding some edges at a time, in any order: nothing is sorted."""
    out = torch.zeros_like(x)
    step = max(1, CHUNK_NUMBERS // max(1, x.size(1)))
    for start in range(0, len(source), step):
        part = slice(start, start + step)
        out.index_add_(0, target[part], x[source[part]].mul_(weight[part, None]))
    return out
