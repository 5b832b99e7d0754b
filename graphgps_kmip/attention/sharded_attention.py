"""Sharded k-MIP attention: the nodes of a graph are distributed over processes, queries and partial sums are sent.

Ring attention (Liu et al. 2023) sends all keys and values around. Here a query attends to at most K keys, so each
selected pair is sent once, to the rank that owns the key, and one partial sum of values returns per visit of a query to
a rank. Gradients are sent the same two ways. `Route` holds the send and receive lists of the selected pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import embedding_bag

from graphgps_kmip.attention.head_arguments import check_dropout
from graphgps_kmip.attention.sparse_attention import dropped, softmax_weight, sparse_attention
from graphgps_kmip.common.operators import refuse_second_derivative
from graphgps_kmip.search import topk_inner_product
from graphgps_kmip.search.sharded_search import Shards, check_heads, index_dtype, topk_over_shards

SLOTS_AT_ONCE = 2**18  # slots whose keys or values are gathered at a time: 16 MiB at 16 channels of float32


@dataclass(frozen=True, eq=False)
class Route:
    """Send and receive lists of the selected pairs; a visit is one query (of one head) at one rank.

    Args:
        slot (Tensor): for each sent pair, in order of rank, its index in the flat (n * H, K) lists.
        visitor (Tensor): for each sent visit, its row in the flat queries.
        sent (tuple[list[int], list[int]]): number of visits, and of pairs, sent to each rank.
        row (Tensor): for each received pair, its row in the flat keys of this rank.
        visit (Tensor): for each received pair, its visit.
        first (Tensor): for each received visit, its first pair.
        received (tuple[list[int], list[int]]): number of visits, and of pairs, received from each rank.

    Shapes:
        slot (S,), visitor (V,), row and visit (S',), first (V',).
    """

    shards: Shards
    slot: Tensor
    visitor: Tensor
    sent: tuple[list[int], list[int]]
    row: Tensor
    visit: Tensor
    first: Tensor
    received: tuple[list[int], list[int]]

    @classmethod
    def of(cls, index: Tensor, shards: Shards) -> Route:
        """Sort the pairs by rank and exchange the lists: index (n, H, K) of global rows, -1 where missing."""
        num_rows, num_heads, num_keys = index.shape
        num_queries = max(1, num_rows * num_heads)
        starts = torch.tensor(shards.starts, device=index.device)
        owner = torch.bucketize(index.long(), starts[1:], right=True).masked_fill(index < 0, shards.count).flatten()
        slot = owner.argsort(stable=True)[: int((owner < shards.count).sum())]
        owner = owner[slot]
        key = index.flatten()[slot] - starts[owner]
        row = key * num_heads + slot // num_keys % num_heads
        visits, length = (owner * num_queries + slot // num_keys).unique_consecutive(return_counts=True)
        counted = [at.bincount(minlength=shards.count) for at in (visits // num_queries, owner)]
        sent = torch.stack(counted, dim=1)  # (R, 2)
        received = shards.exchange(sent, [1] * shards.count, [1] * shards.count)
        (sent_visits, sent_pairs), (came_visits, came_pairs) = sent.T.tolist(), received.T.tolist()
        largest = max(end - start for start, end in zip(shards.starts, shards.starts[1:], strict=False))
        row = shards.exchange(row.to(index_dtype(largest * num_heads)), sent_pairs, came_pairs).long()
        length = shards.exchange(length.to(torch.int32), sent_visits, came_visits).long()
        visit = torch.arange(len(length), device=index.device).repeat_interleave(length, output_size=len(row))
        first = length.cumsum(0) - length
        return cls(
            shards, slot, visits % num_queries, (sent_visits, sent_pairs), row, visit, first, (came_visits, came_pairs)
        )

    def take_visits(self, rows: Tensor) -> Tensor:
        """Send each query's row along with its visits: (n * H, C) -> (V', C)."""
        return self.shards.exchange(rows[self.visitor], self.sent[0], self.received[0])

    def return_visits(self, sums: Tensor, num_rows: int) -> Tensor:
        """Return the sums of the visits and add them up per query: (V', C) -> (n * H, C)."""
        returned = self.shards.exchange(sums, self.received[0], self.sent[0])
        return sums.new_zeros(num_rows, sums.size(1)).index_add_(0, self.visitor, returned)

    def take_pairs(self, lists: Tensor) -> Tensor:
        """Send each pair's numbers to the rank of its key: (n * H, K, ...) -> (S', ...)."""
        return self.shards.exchange(lists.flatten(0, 1)[self.slot], self.sent[1], self.received[1])

    def return_pairs(self, numbers: Tensor, shape: torch.Size) -> Tensor:
        """Return one number per pair, 0 where there is no pair: (S',) -> (n * H, K)."""
        returned = self.shards.exchange(numbers, self.received[1], self.sent[1])
        return numbers.new_zeros(shape.numel()).index_copy_(0, self.slot, returned).view(shape)

    def sum_of(self, values: Tensor, weight: Tensor) -> Tensor:
        """Weighted sum of rows for each visit: values (n * H, C), weight (S',) -> (V', C)."""
        return embedding_bag(self.row, values, self.first, per_sample_weights=weight, mode="sum")

    def dot(self, visitors: Tensor, values: Tensor) -> Tensor:
        """Inner product of each pair: visitors (V', C), values (n * H, C) -> (S',)."""
        pairs = zip(self.visit.split(SLOTS_AT_ONCE), self.row.split(SLOTS_AT_ONCE), strict=True)
        return torch.cat([(visitors[visit] * values[row]).sum(-1) for visit, row in pairs])

    def scatter(self, visitors: Tensor, weight: Tensor, num_rows: int) -> Tensor:
        """Give each key the weighted sum of its visitors: visitors (V', C), weight (S',) -> (n * H, C)."""
        out = visitors.new_zeros(num_rows, visitors.size(1))
        for visit, row, part in zip(*(t.split(SLOTS_AT_ONCE) for t in (self.visit, self.row, weight)), strict=True):
            out.index_add_(0, row, visitors[visit] * part[:, None])
        return out


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
    a single rank, it calls those two.

    Every rank must call it, and must run the backward if one does, with an empty shard too: both are collective.
    Gradients reach q, k and v of every rank. Half-precision inputs are computed in
    float32. ``docs/sharded.md`` counts the bytes.

    Args:
        q (Tensor): queries of this rank's rows; heads second, as ``sparse_attention`` has them.
        k (Tensor): keys of the same rows.
        v (Tensor): values of the same rows.
        num_keys (int): K >= 1; a query of a graph with fewer nodes attends to all of them.
        ptr (Tensor, optional): boundaries of the graphs in the rows of all ranks, in order of rank; None: one graph. A
            graph may span shards. (default: None)
        group (ProcessGroup, optional): process group whose ranks hold the shards; None: the default one.
            (default: None)
        backend (str, optional): search backend, "auto" picks one. (default: "auto")
        dropout (float, optional): probability to drop a weight (the others are divided by 1 - dropout), drawn by the
            query's rank. (default: 0.0)

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
        raise ValueError("this process is not a member of the given process group: pass a group that contains it")
    return dist.get_world_size(group)


class _ShardedAttention(Function):
    """R queries of this rank attend, in each of K slots, to a key and value of some rank; every step is collective."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, keep: Tensor | None, dropout: float, route: Route
    ) -> Tensor:
        """Shapes: q and k (R, D), v (R, C), weight and keep (R, K); returns (R, C)."""
        ctx.save_for_backward(q, k, v, weight, keep)
        ctx.dropout, ctx.route = dropout, route
        received = route.take_pairs(dropped(weight, keep, dropout))
        return route.return_visits(route.sum_of(v, received), len(q))

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """As the unsharded one: ``da = <g, v>`` is received, ``ds = a (da - sum a da) / sqrt(D)`` is sent."""
        refuse_second_derivative("k-MIP attention over several processes")
        q, k, v, weight, keep = ctx.saved_tensors
        route, dim = ctx.route, q.size(1)
        visitors = route.take_visits(torch.cat([q, grad_out], dim=1))  # (V', D + C)
        grad_used = route.return_pairs(route.dot(visitors[:, dim:], v), weight.shape)
        grad_weight = dropped(grad_used, keep, ctx.dropout)
        grad_score = weight * (grad_weight - (weight * grad_weight).sum(1, keepdim=True)) / math.sqrt(dim)
        received = route.take_pairs(torch.stack([grad_score, dropped(weight, keep, ctx.dropout)], dim=-1))  # (S', 2)
        score, used = received.unbind(1)
        grad_q = route.return_visits(route.sum_of(k, score.contiguous()), len(q))
        grad_k = route.scatter(visitors[:, :dim], score, len(k))
        grad_v = route.scatter(visitors[:, dim:], used, len(v))
        return grad_q, grad_k, grad_v, *[None] * 4
