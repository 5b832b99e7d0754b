"""Propagation without parameters: each node gets the weighted sum of its in-neighbours' features, ``A x``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from graphgps_kmip.common.near_misses import look_up

# Numbers of gathered features at a time: 16 MB of float32, on a GPU 128 MB.
CHUNK_NUMBERS = {"cpu": 2**22}
CHUNK_NUMBERS_ELSEWHERE = 2**25


def _symmetric(source: Tensor, target: Tensor, num_nodes: int, dtype: torch.dtype) -> Tensor:
    outward, inward = (torch.bincount(ends, minlength=num_nodes).to(dtype) for ends in (source, target))
    return (outward[source] * inward[target]).rsqrt()


def _mean(source: Tensor, target: Tensor, num_nodes: int, dtype: torch.dtype) -> Tensor:  # noqa: ARG001
    return torch.bincount(target, minlength=num_nodes).to(dtype).reciprocal()[target]


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
        out = torch.zeros(x.shape, dtype=wide, device=x.device)
        step = max(1, CHUNK_NUMBERS.get(x.device.type, CHUNK_NUMBERS_ELSEWHERE) // max(1, x.size(1)))
        for start in range(0, len(source), step):
            part = slice(start, start + step)
            message = x[source[part]].to(wide).mul_(weight[part, None].to(wide))
            out.index_add_(0, target[part], message)
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Propagate the gradient along the reversed edges."""
        source, target, weight = ctx.saved_tensors
        return _Propagate.apply(grad, target, source, weight), None, None, None
