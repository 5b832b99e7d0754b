"""Clamped attention along edges: Exphormer's scores with edge features, by target, without tensors of edges x channels.

Dwivedi and Bresson (2021), as in the public codes of Exphormer and of its low-width score estimator. Edges that are
sorted by target, with few kinds that share features, are walked by a C loop on a CPU
(``ops/native/clamped_attention.c``), others chunk by chunk by torch; the backward pass computes the scores again.
"""

from __future__ import annotations

import ctypes
import errno
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from graphgps_kmip.ops.native import dtype_flags, load, pointer, unavailable_reason
from graphgps_kmip.ops.operators import refuse_second_derivative
from graphgps_kmip.ops.sparse_attention import drop_weights

LARGEST_LOGIT = 5.0  # of the public code: beyond it a score is constant, and has no gradient
EPS = 1e-6  # of the public code: a node without edges gets zeros
# Entries (edges times channels) of one chunk; it has some ten temporaries: 40 MB of float32, on a GPU 1.3 GB.
CHUNK_ENTRIES = {"cpu": 2**20}
CHUNK_ENTRIES_ELSEWHERE = 2**25
KERNEL = "clamped_attention"
FEW_KINDS = 16  # rows of edge features that several edges may share: the C loop multiplies a query by each once
THREAD_WORK = 100_000  # multiplications that take about as long as starting a thread (20 us)


class SortedEdges(NamedTuple):
    """Edges that are sorted by target, for the C loop."""

    begin: Tensor  # (M+1,) first edge of each query
    kind: Tensor  # (R,) number of a row among the shared ones, or negative
    shared: Tensor  # (S,) the rows that several edges share


@dataclass(frozen=True)
class Form:
    """Constants of the scores, edges (3, E), and what dropout keeps (E, H): see `clamped_attention`."""

    limit: float
    eps: float
    scale: float
    edges: Tensor
    sorted_edges: SortedEdges | None = None  # None: torch walks the edges
    dropout: float = 0.0
    keep: Tensor | None = None


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

    Gradients flow to q, k, v, e and b. On a CPU results repeat bit for bit. Half-precision inputs are computed in
    float32. Nothing per edge is kept for the backward pass. Repeated edges count twice; a query without edges gets 0.

    Args:
        q (Tensor): queries.
        k (Tensor): keys.
        v (Tensor): values.
        e (Tensor): keys of the edge features; edges of one kind share a row. One channel serves for all.
        edges (Tensor): source (row of k and v), target (row of q) and row of e and b of each edge, in any order.
        dropout (float, optional): probability to drop a weight s / (sum + eps). (default: 0.0)
        bias (Tensor, optional): b, added to the logits of a kind of edges; None: 0. (default: None)
        limit (float, optional): l; a logit beyond it is constant, and has no gradient. (default: 5.0)
        eps (float, optional): added to the sums; 0: a softmax. (default: 1e-6)
        scale (float, optional): c, None is 1 / sqrt(D). (default: None)

    Shapes: q (M, H, D), k and v (N, H, D), e (R, H, D) or (R, H, 1), edges (3, E), bias (R, H); returns (M, H, D).
    """
    inputs = _widen(v.dtype, q, k, v, e, bias)
    keep = torch.rand(edges.size(1), q.size(1), device=q.device) >= dropout if dropout > 0 else None  # (E, H)
    scale = 1 / math.sqrt(q.size(-1)) if scale is None else scale
    form = Form(limit, eps, scale, edges, _sorted_edges(*inputs[:2], inputs[3], edges), dropout, keep)
    return _ClampedAttention.apply(form, *inputs).to(v.dtype)


def _widen(dtype: torch.dtype, *inputs: Tensor | None) -> tuple[Tensor | None, ...]:
    wide = torch.promote_types(dtype, torch.float32)
    return tuple(tensor if tensor is None else tensor.to(wide) for tensor in inputs)


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
    """Return the weights (E, H) of `clamped_attention` without eps, dropout and gradient, in float32 or wider."""
    q, k, e, bias = _widen(q.dtype, q, k, e, bias)
    scale = 1 / math.sqrt(q.size(-1)) if scale is None else scale
    form = Form(limit, 0.0, scale, edges, _sorted_edges(q, k, e, edges))
    weight = q.new_empty(edges.size(1), q.size(1))
    if form.sorted_edges is not None:
        _forward_by_kernel(form, q, k, None, e, bias, weight=weight)
        return weight
    total = q.new_zeros(q.shape[:2])
    for part in _parts(q, edges):
        source, target, row = edges[:, part]
        weight[part] = _logit(q[target], k[source], e[row], bias, row, form).clamp_(-limit, limit).exp_()
        total.index_add_(0, target, weight[part])
    for part in _parts(q, edges):
        weight[part] /= total[edges[1, part]]
    return weight


def _parts(q: Tensor, edges: Tensor) -> Iterator[slice]:
    size = max(1, CHUNK_ENTRIES.get(q.device.type, CHUNK_ENTRIES_ELSEWHERE) // max(1, q.shape[1:].numel()))
    for start in range(0, edges.size(1), size):
        yield slice(start, start + size)


def _chunks(q: Tensor, form: Form) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    for part in _parts(q, form.edges):
        yield *form.edges[:, part], None if form.keep is None else form.keep[part]


def _logit(query: Tensor, key: Tensor, edge: Tensor, bias: Tensor | None, row: Tensor, form: Form) -> Tensor:
    logit = (query * key).mul_(edge).sum(-1).mul_(form.scale)  # (E, H, D) -> (E, H)
    return logit if bias is None else logit.add_(bias[row])


class _ClampedAttention(Function):
    """M queries, N keys, E edges between them, of R kinds: q (M, H, D), k, v (N, H, D), e (R, H, D), bias (R, H)."""

    @staticmethod
    def forward(ctx: Any, form: Form, *heads: Tensor | None) -> Tensor:
        out, total = _implementation(form)[0](form, *heads)
        ctx.save_for_backward(*heads, out, total, form.edges, form.keep, *(form.sorted_edges or ()))
        ctx.form = replace(form, edges=None, sorted_edges=None, keep=None)  # saved above, where hooks see them
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """``ds = <g_i, v_j> - <g_i, o_i>`` with ``g_i = dL/do_i / (sum_j s_ij + eps)``; none where the clamp holds."""
        refuse_second_derivative("attention along edges")
        saved = ctx.saved_tensors  # once: with gradient checkpointing each can be unpacked once
        (*heads, out, total, edges, keep), lists = saved[:9], saved[9:]
        form = replace(ctx.form, edges=edges, sorted_edges=SortedEdges(*lists) if lists else None, keep=keep)
        grad_sum = grad_out / total[..., None]
        grad_total = (grad_sum * out).sum(-1)
        return None, *_implementation(form)[1](form, grad_sum, grad_total, *heads)


def _implementation(form: Form) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return (torch_forward, torch_backward) if form.sorted_edges is None else (_forward_by_kernel, _backward_by_kernel)


def torch_forward(form: Form, q: Tensor, k: Tensor, v: Tensor, e: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return output (M, H, D) and sums (M, H)."""
    out, total = torch.zeros_like(q), q.new_full(q.shape[:2], form.eps)
    for source, target, row, keep in _chunks(q, form):
        logit = _logit(q[target], k[source], e[row], bias, row, form)
        score = logit.clamp_(-form.limit, form.limit).exp_()
        total.index_add_(0, target, score)
        out.index_add_(0, target, v[source].mul_(drop_weights(score, keep, form.dropout)[..., None]))
    total.masked_fill_(total == 0, 1.0)
    out /= total[..., None]
    return out, total


def torch_backward(
    form: Form, grad_sum: Tensor, grad_total: Tensor, q: Tensor, k: Tensor, v: Tensor, e: Tensor, bias: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return the gradients of q, k, v, e and bias from those of the sums of s v (M, H, D) and of s (M, H)."""
    grad_q, grad_k, grad_v, grad_e = (torch.zeros_like(heads) for heads in (q, k, v, e))
    grad_bias = None if bias is None else torch.zeros_like(bias)
    for source, target, row, keep in _chunks(q, form):
        query, key, edge, grad = q[target], k[source], e[row], grad_sum[target]
        logit = _logit(query, key, edge, bias, row, form)
        score = logit.clamp(-form.limit, form.limit).exp_()
        grad_score = drop_weights((grad * v[source]).sum(-1), keep, form.dropout) - grad_total[target]
        grad_v.index_add_(0, source, grad.mul_(drop_weights(score, keep, form.dropout)[..., None]))
        grad_logit = (grad_score * score).masked_fill_(logit.abs() > form.limit, 0.0)
        if grad_bias is not None:
            grad_bias.index_add_(0, row, grad_logit)
        weighted = query * grad_logit.mul_(form.scale)[..., None]
        grad_e.index_add_(0, row, (weighted * key).sum_to_size(edge.shape))
        grad_k.index_add_(0, source, weighted.mul_(edge))
        grad_q.index_add_(0, target, key.mul_(edge).mul_(grad_logit[..., None]))
    return grad_q, grad_k, grad_v, grad_e, grad_bias


# The C loop: edges of one target after the other, with results that repeat bit for bit on any number of threads.


def _sorted_edges(q: Tensor, k: Tensor, e: Tensor, edges: Tensor) -> SortedEdges | None:
    """Return what the C loop needs to walk the edges of each query, if it can, else None."""
    fits = q.device.type == "cpu" and q.dtype == k.dtype == e.dtype and 0 < len(e) < 2**31 and q.numel() > 0
    if not fits or edges.dtype != torch.int64 or not edges.is_contiguous():
        return None
    if unavailable_reason(KERNEL, *dtype_flags(q.dtype)) is not None:
        return None
    begin, kind = edges.new_empty(len(q) + 1), edges.new_empty(len(e), dtype=torch.int32)
    shared, count = (edges.new_empty(size, dtype=torch.int32) for size in (FEW_KINDS, 1))
    sizes = map(ctypes.c_long, (edges.size(1), len(q), len(k), len(e)))
    results = map(pointer, (begin, kind, shared, count))
    status = load(KERNEL, *dtype_flags(q.dtype)).edges_by_target(pointer(edges), *sizes, FEW_KINDS, *results)
    if status == errno.EINVAL:
        raise IndexError(
            f"edges name rows that are not there: source, target and kind must be below {len(k)}, {len(q)}, {len(e)}"
        )
    return SortedEdges(begin, kind, shared[: int(count)]) if status == 0 else None


def _call(form: Form, inputs: list[Tensor | None], *results: Tensor | None) -> None:
    q, k, _, e, *_ = inputs
    longs = map(ctypes.c_long, (form.edges.size(1), len(q), len(k), len(e)))
    constants = map(ctypes.c_double, (form.limit, form.eps, form.scale, form.dropout))
    threads = max(1, min(torch.get_num_threads(), form.edges.size(1) * q.shape[1:].numel() // THREAD_WORK))
    sizes = *longs, *q.shape[1:], len(form.sorted_edges.shared), *constants, threads
    kernel = load(KERNEL, *dtype_flags(q.dtype)).clamped_attention
    if kernel(*map(pointer, inputs), *sizes, *map(pointer, results)):
        raise MemoryError("not enough memory for clamped attention along edges")


def _contiguous_inputs(form: Form, q: Tensor, k: Tensor, v: Tensor | None, e: Tensor, bias: Tensor | None) -> list:
    inputs = (q, k, v, e.expand(-1, *q.shape[1:]), bias, form.edges, *form.sorted_edges, form.keep)
    return [None if tensor is None else tensor.contiguous() for tensor in inputs]


def _forward_by_kernel(form: Form, *heads: Tensor | None, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute `torch_forward` in C; without v only the sums, and the weights (E, H) where there is memory."""
    inputs = _contiguous_inputs(form, *heads)
    out, total = torch.empty_like(inputs[0]), inputs[0].new_empty(inputs[0].shape[:2])
    _call(form, inputs, out, total, weight, *[None] * 7)
    return out, total


def _backward_by_kernel(
    form: Form, grad_sum: Tensor, grad_total: Tensor, *heads: Tensor | None
) -> tuple[Tensor | None, ...]:
    inputs = _contiguous_inputs(form, *heads)
    grads = [None if tensor is None else torch.empty_like(tensor) for tensor in inputs[:5]]
    _call(form, inputs, None, None, None, grad_sum.contiguous(), grad_total.contiguous(), *grads)
    return *grads[:3], grads[3].sum_to_size(heads[3].shape), grads[4]
