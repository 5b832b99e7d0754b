"""Flat nodes <-> one padded row a graph: the only padding code of the package."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from graphgps_kmip.attention.context import GraphContext


def to_padded(x: Tensor, context: GraphContext) -> tuple[Tensor, Tensor]:
    """Put the nodes of each graph into a row of their own, filled up with zeros.

    Args:
        x: node features.
        context: the graphs.

    Shapes:
        x (N, C); returns padded (B, Nmax, C) and mask (B, Nmax), True = real. Gradients flow to x.
    """
    offset = torch.arange(context.max_nodes, device=x.device)
    mask = offset < context.sizes[:, None]  # (B, Nmax)
    if context.min_nodes == context.max_nodes:
        return x.view(*mask.shape, x.size(1)), mask
    padded = x.new_zeros(mask.numel(), x.size(1)).index_copy(0, _positions(context), x)
    return padded.view(*mask.shape, x.size(1)), mask


def from_padded(padded: Tensor, context: GraphContext) -> Tensor:
    """Undo :func:`to_padded`: drop the padding.

    Shapes:
        padded (B, Nmax, C); returns (N, C). Gradients flow to padded.
    """
    flat = padded.flatten(0, 1)  # (B * Nmax, C)
    return flat if context.min_nodes == context.max_nodes else flat[_positions(context)]


def with_padding(x: Tensor, context: GraphContext) -> tuple[Tensor, GraphContext]:
    """Let padding stand for nodes: every graph gets rows of zeros, as many as the largest one has nodes.

    Only for networks that repeat a public code's fault; ``x[context.real]`` undoes it. What is numbered by nodes
    (edges, pairs) is not of these rows, so layers that read them must not follow.

    Shapes:
        x (N, C); returns x (B * Nmax, C) and its context. Gradients flow to x.
    """
    padded, mask = to_padded(x, context)
    ptr = torch.arange(context.num_graphs + 1, device=x.device) * context.max_nodes
    batch = torch.arange(context.num_graphs, device=x.device).repeat_interleave(context.max_nodes)
    return padded.flatten(0, 1), replace(context, batch=batch, ptr=ptr, real=mask.flatten())


def _positions(context: GraphContext) -> Tensor:
    """Where each node stands in the flat padded rows, (N,)."""
    padding_before = torch.arange(context.num_graphs, device=context.ptr.device) * context.max_nodes - context.ptr[:-1]
    return torch.arange(context.batch.numel(), device=context.ptr.device) + padding_before[context.batch]
