"""Propagation without parameters: each node gets the weighted sum of its in-neighbours' features, ``A x``."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import embedding_bag

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.ops.host_copies import compute_once, counts

CHUNK_NUMBERS = 2**25  # of gathered features at a time, where no list of each node is made: 128 MB of float32
CACHED_NUMBERS = 2**17  # of gathered features at a time that stay in a core's cache: half a megabyte of float32
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
    """
    return look_up(ADJACENCIES, kind, "adjacency")(*edge_index, num_nodes, dtype)


@dataclass
class WeightedEdges:
    """Edges of one graph, or of a batch, sorted when a sum first needs it and stored for the next ones."""

    edge_index: Tensor  # (2, E), in any order
    num_nodes: int
    weight: Tensor | None = None  # (E,), without a gradient; None: 1 each

    @classmethod
    def of(
        cls, edge_index: Tensor, num_nodes: int, kind: Hashable, weigh: Callable[[], Tensor | None]
    ) -> WeightedEdges:
        """Return the edges with the weights that ``weigh()`` computes, or those made before for this kind and dtype."""
        # of an alias: what is kept for a tensor must not keep it alive
        return compute_once(edge_index, (kind, num_nodes), lambda: cls(edge_index.detach(), num_nodes, weigh()))

    @cached_property
    def reversed(self) -> WeightedEdges:
        """The same edges from target to source."""
        return WeightedEdges(self.edge_index.flip(0), self.num_nodes, self.weight)

    @cached_property
    def lists(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sources target by target (E,), where each list starts and the last one ends (N + 1,), rows of edges (E,)."""
        source, target = self.edge_index
        kind = torch.int32 if max(len(source), self.num_nodes) < INT32 else torch.int64
        order = target.to(kind).argsort(stable=True)
        ends = torch.zeros(self.num_nodes + 1, dtype=kind, device=source.device)
        ends[1:] = counts(target, self.num_nodes).cumsum(0)
        return source.to(kind).index_select(0, order), ends, order

    @cached_property
    def sorted_weight(self) -> Tensor:
        """Weights target by target (E,)."""
        return self.weight.index_select(0, self.lists[2])


def adjacency(edge_index: Tensor, num_nodes: int, kind: str, dtype: torch.dtype) -> WeightedEdges:
    """Return edges with `adjacency_weights`, sorted once for all layers that read this tensor."""
    weigh = partial(adjacency_weights, edge_index, num_nodes, kind, dtype)
    return WeightedEdges.of(edge_index, num_nodes, (kind, dtype), weigh)


def unweighted(edge_index: Tensor, num_nodes: int) -> WeightedEdges:
    """Return edges without weights, sorted once for all layers that read this tensor."""
    return WeightedEdges.of(edge_index, num_nodes, None, lambda: None)


def propagate(x: Tensor, edges: WeightedEdges) -> Tensor:
    r"""Return :math:`y_i = \sum_{j \to i} w_{ji} x_j`; no tensor of size edges times channels is kept.

    Half-precision features are summed in float32. Gradients flow to x, as often as wanted, and not to the weights.

    Shapes: x (N, C); returns (N, C).
    """
    return _Propagate.apply(x, edges)


class _Propagate(Function):
    @staticmethod
    def forward(x: Tensor, edges: WeightedEdges) -> Tensor:
        sums = sum_lists if x.device.type == "cpu" else sum_chunks
        return sums(x.to(torch.promote_types(x.dtype, torch.float32)), edges).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, WeightedEdges], output: Tensor) -> None:  # noqa: ARG004
        ctx.edges = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Propagate.apply(grad, ctx.edges.reversed), None


def sum_lists(x: Tensor, edges: WeightedEdges) -> Tensor:
    """Sum node by node, over the list of its edges: no row is written twice, no feature is copied."""
    if not edges.edge_index.size(1):
        return torch.zeros_like(x)
    source, ends, _ = edges.lists
    weight = None if edges.weight is None else edges.sorted_weight.to(x.dtype)
    return embedding_bag(source, x, ends, mode="sum", per_sample_weights=weight, include_last_offset=True)


def sum_chunks(x: Tensor, edges: WeightedEdges) -> Tensor:
    """Sum by adding some edges at a time, unsorted."""
    out, (source, target) = torch.zeros_like(x), edges.edge_index
    step = max(1, CHUNK_NUMBERS // max(1, x.size(1)))
    for start in range(0, len(source), step):
        part = slice(start, start + step)
        messages = x[source[part]]
        out.index_add_(0, target[part], messages if edges.weight is None else messages.mul_(edges.weight[part, None]))
    return out


def propagate_heads(x: Tensor, weight: Tensor, edges: WeightedEdges) -> Tensor:
    r"""Return :math:`y_{ih} = \sum_{e: j \to i} w_{eh} x_{jh}` of each head h, with weights of attention; on a CPU.

    No tensor of size edges times channels is kept. Half-precision features are summed in float32. Gradients flow to
    features and weights, as often as wanted. The weights of ``edges`` are not read.

    Shapes: x (N, H, D), weight (E, H); returns (N, H, D).
    """
    return _PropagateHeads.apply(x, weight, edges)


class _PropagateHeads(Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, edges: WeightedEdges) -> Tensor:
        if not len(weight):
            return torch.zeros_like(x)
        (source, ends, order), dtype = edges.lists, torch.promote_types(x.dtype, torch.float32)
        weight = weight.to(dtype).index_select(0, order).T.contiguous()
        sums = [
            embedding_bag(source, head, ends, mode="sum", per_sample_weights=head_weight, include_last_offset=True)
            for head, head_weight in zip(x.to(dtype).transpose(0, 1).contiguous(), weight, strict=True)
        ]
        return torch.stack(sums, 1).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, WeightedEdges], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs[:2])
        ctx.edges = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """Propagate the gradient along the reversed edges; an edge's own is the product of those of its ends."""
        x, weight = ctx.saved_tensors
        grad_weight = _products(x, grad, ctx.edges.edge_index).to(weight.dtype)
        return _PropagateHeads.apply(grad, weight, ctx.edges.reversed), grad_weight, None


def _products(x: Tensor, y: Tensor, edge_index: Tensor) -> Tensor:
    """Return the inner products of sources in x and targets in y, some edges at a time: (N, H, D) twice -> (E, H)."""
    num_heads, dim = x.shape[1:]
    to_heads = torch.eye(num_heads, dtype=x.dtype, device=x.device).repeat_interleave(dim, 0)  # sums of D by a product
    x, y = x.flatten(1), y.flatten(1)
    parts = edge_index.split(max(1, CACHED_NUMBERS // (num_heads * dim)), dim=1)
    return torch.cat([(x.index_select(0, source) * y.index_select(0, target)) @ to_heads for source, target in parts])
