"""Padding of graphs to dense batches: flat nodes (N, C) to (B, Nmax, C) and back, and tiles of consecutive nodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.ops.host_copies import host_copy, remember


def to_padded(x: Tensor, context: GraphContext) -> tuple[Tensor, Tensor]:
    """Pad the nodes of each graph with zeros to the size of the largest graph.

    Shapes: x (N, C); returns padded (B, Nmax, C) and mask (B, Nmax), True = real. Gradients flow to x.
    """
    offset = torch.arange(context.max_nodes, device=x.device)
    mask = offset < context.sizes[:, None]  # (B, Nmax)
    if context.min_nodes == context.max_nodes:
        return x.view(*mask.shape, x.size(1)), mask
    padded = x.new_zeros(mask.numel(), x.size(1)).index_copy(0, _positions(context), x)
    return padded.view(*mask.shape, x.size(1)), mask


def from_padded(padded: Tensor, context: GraphContext) -> Tensor:
    """Undo :func:`to_padded`: drop the padding.

    Shapes: padded (B, Nmax, C); returns (N, C). Gradients flow to padded.
    """
    flat = padded.flatten(0, 1)  # (B * Nmax, C)
    return flat if context.min_nodes == context.max_nodes else flat[_positions(context)]


def _positions(context: GraphContext) -> Tensor:
    padding_before = torch.arange(context.num_graphs, device=context.ptr.device) * context.max_nodes - context.ptr[:-1]
    return torch.arange(context.batch.numel(), device=context.ptr.device) + padding_before[context.batch]


@dataclass(frozen=True, eq=False)
class Tiles:
    """T tiles of the graphs of a batch; only the last one of a graph may be smaller than the others.

    Padded as if they were graphs, tiles of W nodes take fewer than N + B * W rows, padded graphs B * Nmax.
    """

    context: GraphContext  # the tiles as graphs
    graph: Tensor  # (T,) graph of each tile
    place: Tensor  # (T,) number of each tile in its graph

    @classmethod
    def of(cls, context: GraphContext, width: int) -> Tiles:
        """Split each graph into tiles of ``width`` nodes and a rest; a graph without nodes has no tile."""
        graph, place, ptr = _split_graphs(context.ptr, context.host_sizes, width)
        if ptr.device.type != "cpu":
            remember(ptr, _split_graphs(host_copy(context.ptr), context.host_sizes, width)[2])
        batch = torch.repeat_interleave(ptr.diff(), output_size=len(context.batch))
        return cls(GraphContext(batch, ptr), graph, place)

    @classmethod
    def split_uneven(cls, context: GraphContext, width: int) -> Tiles:
        """Split only if it saves memory: where padding at most doubles the rows, each graph is one tile."""
        if context.num_graphs * context.max_nodes > 2 * context.batch.numel():
            return cls.of(context, width)
        graph = torch.arange(context.num_graphs, device=context.ptr.device)
        return cls(context, graph, torch.zeros_like(graph))


def _split_graphs(ptr: Tensor, host_sizes: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Graph and place of each tile, (T,), and first node of each, and N at the end, (T+1,)."""
    count, host_count = ((sizes + width - 1) // width for sizes in (ptr.diff(), host_sizes))
    number = int(host_count.sum())
    graph = torch.repeat_interleave(count, output_size=number)
    place = torch.arange(number, device=graph.device) - (count.cumsum(0) - count)[graph]
    return graph, place, torch.cat([ptr[graph] + place * width, ptr[-1:]])
