"""Attention between the nodes of a graph that no edge joins, by products of matrices with a mask.

Nothing as long as pairs times channels is ever made, and where the pairs are many they are taken some queries at a
time, and computed again in the backward.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from graphgps_kmip.attention.clamped import LARGEST_LOGIT
from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.dense import from_padded, to_padded

# Weights (pairs times heads) at once; they have some five temporaries: 80 MB of float32, on a GPU 1.3 GB.
LARGEST = {"cpu": 2**22}
LARGEST_ELSEWHERE = 2**26


def between_unlinked(q: Tensor, k: Tensor, v: Tensor, context: GraphContext, softmax: bool) -> Tensor:
    r"""Sum values over the other nodes of each node's graph from which no edge leads to it, weighted by scores.

    .. math:: o_i = \sum_{j \not\to i} w_{ij} v_j, \qquad
        w_{ij} = \exp(\mathrm{clamp}(\langle q_i, k_j \rangle / \sqrt{D}, -5, 5))

    or the softmax of these scores over j, without the clamp. A node with an edge from every other one gets 0. Costs
    B * H * Nmax^2 * (D + C); memory is that of at most `LARGEST` weights.

    Args:
        q: queries.
        k: keys.
        v: values.
        context: the graphs, with the edges between them.
        softmax: normalise, instead of clamping.

    Shapes:
        q, k (N, H, D), v (N, H, C); returns (N, H, C). Gradients flow to q, k and v.
    """
    if not len(q):
        return v
    nodes = (q / math.sqrt(q.size(-1)), k, v)
    q, k, v = (to_padded(x.flatten(1), context)[0].unflatten(2, x.shape[1:]).transpose(1, 2) for x in nodes)
    most = q.size(2)  # q, k (B, H, Nmax, D), v (B, H, Nmax, C)
    rows = max(1, LARGEST.get(q.device.type, LARGEST_ELSEWHERE) // (q.size(0) * q.size(1) * most))
    kept = rows >= most
    attend = _attend if kept else partial(checkpoint, _attend, use_reentrant=False, preserve_rng_state=False)
    parts = [attend(q[:, :, i : i + rows], k, v, context, i, softmax) for i in range(0, most, rows)]
    sums = torch.cat(parts, dim=2).transpose(1, 2)  # (B, Nmax, H, C)
    return from_padded(sums.flatten(2), context).unflatten(1, sums.shape[2:])


def _attend(q: Tensor, k: Tensor, v: Tensor, context: GraphContext, start: int, softmax: bool) -> Tensor:
    """Return the sums for R nodes of each graph, from its ``start``-th on: q (B, H, R, D) -> (B, H, R, C)."""
    score = (q @ k.mT).to(torch.promote_types(v.dtype, torch.float32))  # (B, H, R, Nmax)
    apart = _unlinked(context, start, q.size(2))[:, None]  # (B, 1, R, Nmax)
    if softmax:  # a finite number, not -inf: a row without any pair would turn into NaN
        weight = score.masked_fill(~apart, torch.finfo(score.dtype).min).softmax(-1)
    else:
        weight = score.clamp(-LARGEST_LOGIT, LARGEST_LOGIT).exp()
    return weight.masked_fill(~apart, 0.0) @ v.to(score.dtype)


def _unlinked(context: GraphContext, start: int, rows: int) -> Tensor:
    """Tell which nodes have no edge to which others of their graph, of targets ``start`` to ``start + rows``.

    Shapes: returns (B, rows, Nmax), target before source; False for padding.
    """
    target = torch.arange(start, start + rows, device=context.ptr.device)
    source = torch.arange(context.max_nodes, device=context.ptr.device)
    apart = (source < context.sizes[:, None, None]) & (source != target[:, None])
    if context.edge_index is not None:
        graph = context.batch[context.edge_index[0]]
        source, target = context.edge_index - context.ptr[graph]  # in their graph
        inside = (target >= start) & (target < start + rows)
        apart[graph[inside], target[inside] - start, source[inside]] = False
    return apart
