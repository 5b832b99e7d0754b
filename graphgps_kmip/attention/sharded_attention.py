"""k-MIP attention over nodes sharded over processes: keys and values stay; what travels are queries and sums.

Ring attention (Liu et al. 2023) passes all keys and values around. Here a query meets at most K keys, so that each
selected pair is sent once, to the rank that owns the key, and one partial sum of values returns for each visit of a
query to a rank. Gradients take the same two ways.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from graphgps_kmip.attention.gather import softmax_weight, sparse_attention
from graphgps_kmip.attention.gather_torch import dropped
from graphgps_kmip.attention.head_arguments import check_dropout
from graphgps_kmip.attention.route import Route
from graphgps_kmip.common.gradients import once_only
from graphgps_kmip.search import topk_inner_product
from graphgps_kmip.search.sharded_search import topk_over_shards
from graphgps_kmip.search.shards import Shards, check_heads


def sharded_kmip_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    num_keys: int,
    ptr: Tensor | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    backend: str = "auto",
    dropout: float = 0.0,
) -> Tensor:
    """k-MIP attention of the queries of this rank over the keys and values of all ranks.

    ``o_n = sum_j a_nj v_I(n,j)`` with ``a_n = softmax_j(<q_n, k_I(n,j)> / sqrt(D))`` and I(n, .) the K keys of the
    graph of n with the largest inner product, wherever they are: what ``topk_inner_product`` and ``sparse_attention``
    give on the unsharded rows, up to rounding and to the choice among equal scores. Without a process group, or with
    one of a single rank, it is those two.

    Every rank must call it, and must run the backward if one does, with an empty shard too: both are collective.
    Gradients reach q, k and v of every rank, once: a second derivative raises. Halves are computed in float32.
    ``docs/sharded.md`` counts the bytes.

    Args:
        q: queries of this rank's rows; heads second, as ``sparse_attention`` has them.
        k: keys of the same rows.
        v: values of the same rows.
        num_keys: K >= 1; a query of a graph with fewer nodes attends to all of them.
        ptr: boundaries of the graphs in the rows of all ranks, in order of rank; None: one graph. Graphs may straddle
            shards.
        group: process group whose ranks hold the shards; None: the default one.
        backend: search backend, "auto" picks one.
        dropout: probability to drop a weight (the others are divided by 1 - dropout), drawn by the query's rank.

    Shapes:
        q and k (n, H, D), v (n, H, C), ptr (B+1,); returns (n, H, C). The rows n may differ between ranks, and be 0.

    Raises:
        ValueError: on every rank, if the input of one is wrong or does not fit that of the others; for a group that
            this rank is not in, or a dropout out of its range, on the rank that gives it.
        NotFinite: on every rank, if q or k of one is NaN or infinite.
    """
    check_dropout(dropout)
    if _num_ranks(group) == 1:
        check_heads(q, k, v)
        ptr = torch.tensor([0, q.size(0)], device=q.device) if ptr is None else ptr
        wide = torch.promote_types(q.dtype, torch.float32)
        heads = (tensor.transpose(0, 1).to(wide) for tensor in (q, k))
        index, score = topk_inner_product(*heads, ptr, ptr, num_keys, backend)
        return sparse_attention(q, k, v, index, score, dropout)
    shards = Shards.agree(q, k, v, num_keys, ptr, group, backend)
    index, score = topk_over_shards(q, k, shards, num_keys, backend)
    weight = softmax_weight(score, q.size(-1)).flatten(0, 1)  # (n * H, K)
    keep = torch.rand_like(weight) >= dropout if dropout > 0 else None
    flat = [tensor.flatten(0, 1).to(weight.dtype) for tensor in (q, k, v)]  # (n * H, D), (n * H, D), (n * H, C)
    out = _ShardedAttention.apply(*flat, weight, keep, dropout, Route.of(index, shards))
    return out.view(*v.shape).to(v.dtype)


def _num_ranks(group: dist.ProcessGroup | None) -> int:
    if not dist.is_available() or not dist.is_initialized():
        return 1
    if dist.get_rank(group) < 0:
        raise ValueError("this process is not in the group it was given: call with a group that it is a member of")
    return dist.get_world_size(group)


class _ShardedAttention(Function):
    """R queries of this rank meet, in each of K slots, a key and value of some rank; every step is collective."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, keep: Tensor | None, dropout: float, route: Route
    ) -> Tensor:
        """Shapes: q and k (R, D), v (R, C), weight and keep (R, K); returns (R, C)."""
        ctx.save_for_backward(q, k, v, weight, keep)
        ctx.dropout, ctx.route = dropout, route
        came = route.take_pairs(dropped(weight, keep, dropout))
        return route.return_visits(route.sum_of(v, came), len(q))

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """As the unsharded one: ``da = <g, v>`` comes home, ``ds = a (da - sum a da) / sqrt(D)`` goes out."""
        if torch.is_grad_enabled():
            compute = partial(_ShardedAttention._gradients, ctx, grad_out)
            return *once_only("k-MIP attention over several processes", compute, (grad_out, *ctx.saved_tensors)), *[
                None
            ] * 4
        return *_ShardedAttention._gradients(ctx, grad_out), *[None] * 4

    @staticmethod
    def _gradients(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, weight, keep = ctx.saved_tensors
        route, dim = ctx.route, q.size(1)
        visitors = route.take_visits(torch.cat([q, grad_out], dim=1))  # (V', D + C)
        grad_used = route.return_pairs(route.dot(visitors[:, dim:], v), weight.shape)
        grad_weight = dropped(grad_used, keep, ctx.dropout)
        grad_score = weight * (grad_weight - (weight * grad_weight).sum(1, keepdim=True)) / math.sqrt(dim)
        came = route.take_pairs(torch.stack([grad_score, dropped(weight, keep, ctx.dropout)], dim=-1))  # (S', 2)
        score, used = came.unbind(1)
        grad_q = route.return_visits(route.sum_of(k, score.contiguous()), len(q))
        grad_k = route.scatter(visitors[:, :dim], score, len(k))
        grad_v = route.scatter(visitors[:, dim:], used, len(v))
        return grad_q, grad_k, grad_v
