"""Clamped attention along edges: Exphormer's scores with edge features, by target, without tensors of edges x channels.

The form is that of Dwivedi and Bresson (2021) as the public codes of Exphormer and of its low-width score
estimator have it. It differs from the plain form only in memory: forward and backward walk the edges chunk by chunk,
scores are computed again in the backward pass, and no tensor of size edges times channels is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from graphgps_kmip.attention.sparse_attention import dropped
from graphgps_kmip.common.gradients import differentiable_gradients

LARGEST_LOGIT = 5.0  # of the public code: beyond it a score is constant, and has no gradient
EPS = 1e-6  # of the public code: a node without edges gets zeros
# Entries (edges times channels) of one chunk; it has some ten temporaries: 40 MB of float32, on a GPU 1.3 GB.
CHUNK_ENTRIES = {"cpu": 2**20}
CHUNK_ENTRIES_ELSEWHERE = 2**25


@dataclass(frozen=True)
class _Form:
    """Constants of the scores: see `clamped_attention`."""

    limit: float
    eps: float
    scale: float
    dropout: float = 0.0


def clamped_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    e: Tensor,
    edges: Tensor,
    dropout: float = 0.0,
    *,
    bias: Tensor | None = None,
    limit: float = LARGEST_LOGIT,
    eps: float = EPS,
    scale: float | None = None,
) -> Tensor:
    r"""Attend along edges j -> i of kind r: a weighted mean of the sources' values.

    .. math::
        s_{ij} &= \exp(\mathrm{clamp}(c \textstyle\sum_d q_i k_j e_r + b_r, -l, l)) \\
        o_i &= \textstyle\sum_j s_{ij} v_j / (\sum_j s_{ij} + \epsilon)

    Gradients flow to q, k, v, e and b, as often as wanted (a second derivative keeps tensors of size edges times
    channels). On a CPU forward and backward repeat bit for bit. Half-precision inputs are computed in float32. Costs
    E * H * D several times over; q, k, v, e, b, the output and the sums are kept for the backward pass, nothing per
    edge. An edge that is given twice counts twice; a query without edges gets 0, with eps 0, too.

    Args:
        q (Tensor): queries.
        k (Tensor): keys.
        v (Tensor): values.
        e (Tensor): keys of the edge features; edges of one kind share a row. One channel serves for all.
        edges (Tensor): source (row of k and v), target (row of q) and row of e and b of each edge, in any order.
        dropout (float, optional): probability to drop a weight s / (sum + eps) (the others are divided by 1 -
            dropout). (default: 0.0)
        bias (Tensor, optional): b, added to the logits of a kind of edges; None: 0. (default: None)
        limit (float, optional): l, the largest absolute value of a logit; beyond it it is constant, and has no
            gradient. (default: 5.0)
        eps (float, optional): added to the sums; 0: a softmax. (default: 1e-6)
        scale (float, optional): c, None is 1 / sqrt(D). (default: None)

    Shapes:
        q (M, H, D), k and v (N, H, D), e (R, H, D) or (R, H, 1), edges (3, E), bias (R, H); returns (M, H, D).
    """
    wide = torch.promote_types(v.dtype, torch.float32)
    keep = torch.rand(edges.size(1), q.size(1), device=q.device) >= dropout if dropout > 0 else None  # (E, H)
    form = _form(q, limit, eps, scale, dropout)
    bias = None if bias is None else bias.to(wide)
    return _ClampedAttention.apply(*(heads.to(wide) for heads in (q, k, v, e)), bias, edges, keep, form).to(v.dtype)


@torch.no_grad()
def edge_weights(
    q: Tensor,
    k: Tensor,
    e: Tensor,
    edges: Tensor,
    *,
    bias: Tensor | None = None,
    limit: float = LARGEST_LOGIT,
    scale: float | None = None,
) -> Tensor:
    """Return the weights of `clamped_attention` without eps and dropout: those of the edges into a query sum to 1.

    Has no gradient; computed in chunks of edges, so that little more than the result is in memory.

    Shapes:
        as in `clamped_attention`; returns (E, H), in float32 or wider.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k, e = (heads.to(wide) for heads in (q, k, e))
    bias, form = None if bias is None else bias.to(wide), _form(q, limit, 0.0, scale)
    weight, total = q.new_empty(edges.size(1), q.size(1)), q.new_zeros(q.shape[:2])
    for part in _parts(q, edges):
        source, target, row = edges[:, part]
        weight[part] = _logit(q[target], k[source], e[row], bias, row, form).clamp_(-limit, limit).exp_()
        total.index_add_(0, target, weight[part])
    for part in _parts(q, edges):
        weight[part] /= total[edges[1, part]]
    return weight


def _form(q: Tensor, limit: float, eps: float, scale: float | None, dropout: float = 0.0) -> _Form:
    return _Form(limit, eps, 1 / math.sqrt(q.size(-1)) if scale is None else scale, dropout)


def _parts(q: Tensor, edges: Tensor) -> Iterator[slice]:
    """Yield the edges of one chunk after the other."""
    size = max(1, CHUNK_ENTRIES.get(q.device.type, CHUNK_ENTRIES_ELSEWHERE) // max(1, q.shape[1:].numel()))
    for start in range(0, edges.size(1), size):
        yield slice(start, start + size)


def _chunks(q: Tensor, edges: Tensor, keep: Tensor | None) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """Yield source, target, row and what dropout keeps, of some edges at a time."""
    for part in _parts(q, edges):
        yield *edges[:, part].unbind(0), None if keep is None else keep[part]


def _logit(query: Tensor, key: Tensor, edge: Tensor, bias: Tensor | None, row: Tensor, form: _Form) -> Tensor:
    logit = (query * key).mul_(edge).sum(-1).mul_(form.scale)  # (E, H, D) -> (E, H)
    return logit if bias is None else logit.add_(bias[row])


def _plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    e: Tensor,
    bias: Tensor | None,
    edges: Tensor,
    keep: Tensor | None,
    form: _Form,
) -> Tensor:
    """The same output in operations that are differentiable as often as wanted, all edges at once."""
    source, target, row = edges
    logit = (q[target] * k[source] * e[row]).sum(-1) * form.scale  # (E, H)
    logit = logit if bias is None else logit + bias[row]
    score = logit.clamp(-form.limit, form.limit).exp()
    total = score.new_full(q.shape[:2], form.eps).index_add(0, target, score)
    message = dropped(score, keep, form.dropout)[..., None] * v[source]
    out = torch.zeros_like(q).index_add(0, target, message)
    return out / total.masked_fill(total == 0, 1.0)[..., None]


class _ClampedAttention(Function):
    """M queries, N keys, E edges between them, of R kinds."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        e: Tensor,
        bias: Tensor | None,
        edges: Tensor,
        keep: Tensor | None,
        form: _Form,
    ) -> Tensor:
        """Shapes: q (M, H, D), k, v (N, H, D), e (R, H, D), bias (R, H), edges (3, E), keep (E, H); returns as q."""
        out, total = torch.zeros_like(q), q.new_full(q.shape[:2], form.eps)
        for source, target, row, kept in _chunks(q, edges, keep):
            logit = _logit(q[target], k[source], e[row], bias, row, form)
            score = logit.clamp_(-form.limit, form.limit).exp_()
            total.index_add_(0, target, score)
            out.index_add_(0, target, v[source].mul_(dropped(score, kept, form.dropout)[..., None]))
        total.masked_fill_(total == 0, 1.0)
        out /= total[..., None]
        ctx.save_for_backward(q, k, v, e, bias, edges, keep, out, total)
        ctx.form = form
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """``ds = <g_i, v_j> - <g_i, o_i>`` with ``g_i = dL/do_i / (sum_j s_ij + eps)``; none where the clamp holds."""
        q, k, v, e, bias, edges, keep, out, total = ctx.saved_tensors
        form = ctx.form
        if torch.is_grad_enabled():
            plain = partial(_plain, edges=edges, keep=keep, form=form)
            return *differentiable_gradients(plain, (q, k, v, e, bias), (grad_out,)), None, None, None
        grad_q, grad_k, grad_v, grad_e = (torch.zeros_like(heads) for heads in (q, k, v, e))
        grad_bias = None if bias is None else torch.zeros_like(bias)
        grad_sum = grad_out / total[..., None]
        grad_total = (grad_sum * out).sum(-1)
        for source, target, row, kept in _chunks(q, edges, keep):
            query, key, edge, grad = q[target], k[source], e[row], grad_sum[target]
            logit = _logit(query, key, edge, bias, row, form)
            score = logit.clamp(-form.limit, form.limit).exp_()
            grad_score = dropped((grad * v[source]).sum(-1), kept, form.dropout) - grad_total[target]
            grad_v.index_add_(0, source, grad.mul_(dropped(score, kept, form.dropout)[..., None]))
            grad_logit = (grad_score * score).masked_fill_(logit.abs() > form.limit, 0.0)
            if grad_bias is not None:
                grad_bias.index_add_(0, row, grad_logit)
            weighted = query * grad_logit.mul_(form.scale)[..., None]
            grad_e.index_add_(0, row, (weighted * key).sum_to_size(edge.shape))
            grad_k.index_add_(0, source, weighted.mul_(edge))
            grad_q.index_add_(0, target, key.mul_(edge).mul_(grad_logit[..., None]))
        return grad_q, grad_k, grad_v, grad_e, grad_bias, None, None, None
