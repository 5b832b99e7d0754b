"""Faults of the public k-MIP code, for runs that must repeat it: padding among the keys, and key 0 in missing slots."""

from __future__ import annotations

import torch
from torch import Tensor

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.dense import to_padded
from graphgps_kmip.attention.graph import AttentionGraph


def with_padding(x: Tensor, context: GraphContext) -> tuple[Tensor, GraphContext]:
    """Fill every graph up with nodes of zeros to the size of the largest one, as nodes like all others.

    Shapes:
        x (N, C); returns (B * Nmax, C), and these graphs.
    """
    padded, _ = to_padded(x, context)
    graph = torch.arange(context.num_graphs, device=x.device).repeat_interleave(context.max_nodes)
    ptr = torch.arange(context.num_graphs + 1, device=x.device) * context.max_nodes
    return padded.flatten(0, 1), GraphContext(graph, ptr, progress=context.progress)


def without_padding(graph: AttentionGraph, context: GraphContext) -> AttentionGraph:
    """Undo `with_padding` in what was learned: padding among the keys becomes an empty slot.

    The weights of a query then no longer sum to 1.

    Shapes:
        index and weight (H, B * Nmax, K) -> (H, N, K).
    """
    node, mask = to_padded(torch.arange(len(context.batch), device=context.batch.device)[:, None], context)
    mask = mask.flatten()
    node = node.flatten().masked_fill(~mask, -1)  # (B * Nmax,), of each padded row
    index, weight = graph.index[:, mask], graph.weight[:, mask]
    index = node[index.clamp(min=0)].masked_fill(index < 0, -1)
    return AttentionGraph(index, weight.masked_fill(index < 0, 0.0))


@torch.no_grad()
def repeat_first_key(
    q: Tensor, k: Tensor, index: Tensor, score: Tensor, context: GraphContext
) -> tuple[Tensor, Tensor]:
    """Put the first node of the graph into the slots of queries that have fewer keys, so that it counts again in each.

    Shapes:
        q and k (H, N, D), index and score (H, N, K); returns tensors like index and score.
    """
    first = context.ptr[context.batch]  # (N,)
    again = (q * k[:, first]).sum(-1)[..., None]  # (H, N, 1)
    return torch.where(index < 0, first[:, None], index), torch.where(index < 0, again, score)
