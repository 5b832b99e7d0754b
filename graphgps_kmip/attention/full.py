"""Full softmax attention (transformer) inside each graph, by fused kernels.

torch's fused CPU kernel neither supports dropout nor graphs of different sizes: there C loops compute each graph and
head separately (``native/full_attention.c``). `BiasedFullAttention` adds a bias for each pair, as Graphormer does.
"""

from __future__ import annotations

import ctypes
import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.functional import scaled_dot_product_attention

from graphgps_kmip.attention.head_arguments import check_dropout, describe, dim_per_head
from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.context import AttentionGraph, GraphContext, check_bounds, complete_pairs
from graphgps_kmip.ops.dense import from_padded, to_padded
from graphgps_kmip.ops.host_copies import host_copy
from graphgps_kmip.ops.native import dtype_flags, load, pointer, unavailable_reason
from graphgps_kmip.ops.operators import operator, overflow, refuse_second_derivative
from graphgps_kmip.ops.pair_attention import PAIR_WORK, padded_pairs, pair_attention
from graphgps_kmip.registry import register


def can_run(qkv: Tensor, context: GraphContext, num_heads: int, dropout: float) -> bool:
    """Whether the C loops support these tensors and are of use: all threads have work (one per graph and head)."""
    fits = qkv.device.type == "cpu" and qkv.dtype in (torch.float32, torch.float64)
    # a traced program does not know the number of graphs, and torch's attention would pad them
    parallel = dropout > 0 or is_compiling() or context.num_graphs * num_heads >= torch.get_num_threads()
    return fits and parallel and unavailable_reason("full_attention", *dtype_flags(qkv.dtype)) is None


def full_attention(qkv: Tensor, context: GraphContext, num_heads: int, dropout: float = 0.0) -> Tensor:
    r"""Compute ``softmax(Q K^T / sqrt(D)) V`` in each graph and head, weights dropped with a probability.

    Gradients flow to qkv. Results repeat bit for bit, on any number of threads. The dropout mask follows from one
    number drawn from torch's generator; the probability has steps of 2^-32.

    Shapes: queries, keys and values of all heads side by side (N, 3 H D) -> (N, H D).

    Raises:
        MemoryError: not enough for the keys and values of one head of the largest graph.
        NotFinite: qkv is finite, but inner products of queries and keys overflow.
    """
    seed = torch.randint(2**62, ()) if dropout else None
    return _full_attention(qkv, context.ptr, num_heads, dropout, seed)[0]


def _attend(qkv: Tensor, ptr: Tensor, num_heads: int, dropout: float, seed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the output, and one number for each query and head for the backward pass."""
    qkv = qkv.contiguous()
    out, lse = qkv.new_empty(len(qkv), qkv.size(1) // 3), qkv.new_empty(len(qkv), num_heads)
    _call(qkv, None, ptr, (num_heads, dropout, seed), out, lse, None)
    # a sum carries a NaN along and is the cheapest look
    if not math.isfinite(lse.sum().item()) and not lse.isfinite().all() and qkv.isfinite().all():
        q, k, _ = (float(part.abs().max()) for part in qkv.chunk(3, 1))
        raise overflow(q, k, qkv.dtype)
    return out, lse


def _attend_back(
    grad_out: Tensor, qkv: Tensor, ptr: Tensor, out: Tensor, lse: Tensor, num_heads: int, dropout: float,
    seed: Tensor | None,
) -> Tensor:  # fmt: skip
    qkv, grad_out, out, lse = (tensor.contiguous() for tensor in (qkv, grad_out, out, lse))
    grad = torch.empty_like(qkv)
    _call(qkv, grad_out, ptr, (num_heads, dropout, seed), out, lse, grad)
    return grad


def _save(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    qkv, ptr, ctx.num_heads, ctx.dropout, seed = inputs
    ctx.save_for_backward(qkv, ptr, *output, seed)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # no zeros for that one


def _differentiate(ctx: Any, grad_out: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad_out is None:
        return (None,) * 5
    refuse_second_derivative("full attention")
    qkv, ptr, out, lse, seed = ctx.saved_tensors
    return _full_attention_backward(grad_out, qkv, ptr, out, lse, ctx.num_heads, ctx.dropout, seed), *[None] * 4


_full_attention_backward = operator(
    "full_attention_backward(Tensor grad_out, Tensor qkv, Tensor ptr, Tensor out, Tensor lse, int num_heads, "
    "float dropout, Tensor? seed) -> Tensor",
    _attend_back,
    lambda grad_out, qkv, *_: qkv.new_empty(qkv.shape),  # noqa: ARG005
)
_full_attention = operator(
    "full_attention(Tensor qkv, Tensor ptr, int num_heads, float dropout, Tensor? seed) -> (Tensor, Tensor)",
    _attend,
    lambda qkv, ptr, num_heads, *_: (  # noqa: ARG005
        qkv.new_empty(qkv.size(0), qkv.size(1) // 3),
        qkv.new_empty(qkv.size(0), num_heads),
    ),
    keep=_save,
    gradients=_differentiate,
)  # fmt: skip


def _call(
    qkv: Tensor,
    grad_out: Tensor | None,
    ptr: Tensor,
    options: tuple[int, float, Tensor | None],
    out: Tensor,
    lse: Tensor,
    grad: Tensor | None,
) -> None:
    (num_heads, dropout, seed), bounds, ptr = options, host_copy(ptr).tolist(), ptr.long().contiguous()
    check_bounds(bounds, len(qkv))  # compiled code reads by them
    max_nodes = max((end - start for start, end in pairwise(bounds)), default=0)
    pairs = len(qkv) * max_nodes * num_heads
    failed = load("full_attention", *dtype_flags(qkv.dtype)).full_attention(
        *map(pointer, (qkv, grad_out, ptr)),
        *map(ctypes.c_long, (len(ptr) - 1, max_nodes)),
        *(num_heads, out.size(1) // num_heads),
        ctypes.c_double(dropout),
        ctypes.c_uint64(0 if seed is None else int(seed)),
        max(1, min(torch.get_num_threads(), pairs // PAIR_WORK)),
        *map(pointer, (out, lse, grad)),
    )
    if failed:
        raise MemoryError(f"not enough memory for full attention in a graph of {max_nodes} nodes")


@register("attention", "Transformer")
class FullAttention(nn.Module):
    """Multi-head attention where every node attends to all nodes of its graph.

    ``out(concat_h softmax(Q_h K_h^T / sqrt(D)) V_h)`` with D = dim / num_heads; costs sum_g N_g^2 * dim.
    Initialised as ``torch.nn.MultiheadAttention``.

    Args:
        dim (int): channels in and out.
        num_heads (int): heads; must divide dim.
        dropout (float, optional): probability to drop an attention weight, in training only. (default: 0.0)

    Shapes: x (N, dim); context a GraphContext, a batch vector (N,) or None; returns (N, dim).

    Raises:
        ValueError: dim is not divisible by num_heads, or dropout is not in [0, 1).
    """

    def __init__(self, dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        dim_per_head(dim, num_heads)
        self.dim, self.num_heads, self.dropout = dim, num_heads, check_dropout(dropout)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each graph: x (N, dim) -> (N, dim)."""
        context = GraphContext.of(context, x)
        dropout = self.dropout if self.training else 0.0
        qkv = self.qkv(x)
        if can_run(qkv, context, self.num_heads, dropout):
            return self.out(full_attention(qkv, context, self.num_heads, dropout))
        q, k, v, mask = self._pad(qkv, context)
        if context.min_nodes == context.max_nodes:  # no padding: without a mask run the fastest kernels
            mask = None
        else:  # a graph without nodes attends to its padding: a row without any key could turn into NaN
            mask = (mask | ~mask.any(1, keepdim=True))[:, None, None]  # (B, 1, 1, Nmax)
        out = scaled_dot_product_attention(q, k, v, mask, dropout)  # (B, H, Nmax, D)
        return self.out(from_padded(out.transpose(1, 2).flatten(2), context))

    @torch.no_grad()
    def attention_graph(self, x: Tensor, context: GraphContext | Tensor | None = None) -> AttentionGraph:
        """Return all weights: K = Nmax slots per node, in the order of the nodes of its graph, without dropout."""
        return self.weights(x, GraphContext.of(context, x))

    extra_repr = describe

    def weights(self, x: Tensor, context: GraphContext, bias: Tensor | None = None) -> AttentionGraph:
        """Return all weights, with a bias (B, H, Nmax, Nmax) added to the scores."""
        q, k, _, mask = self._pad(self.qkv(x), context)
        score = q @ k.mT / math.sqrt(q.size(-1))  # (B, H, Nmax, Nmax)
        score = (score if bias is None else score + bias).transpose(1, 2).flatten(2)  # (B, Nmax, H * Nmax)
        mask = mask[context.batch]  # (N, Nmax), the keys of each node
        score = from_padded(score, context).unflatten(1, (self.num_heads, -1)).transpose(0, 1)  # (H, N, Nmax)
        weight = score.masked_fill(~mask, -torch.inf).softmax(-1)
        index = context.ptr[context.batch, None] + torch.arange(context.max_nodes, device=x.device)
        return AttentionGraph(index.masked_fill(~mask, -1).expand_as(weight), weight)

    def _pad(self, qkv: Tensor, context: GraphContext) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return padded q, k and v (B, H, Nmax, D) and the mask (B, Nmax) of real nodes."""
        padded, mask = to_padded(qkv, context)
        q, k, v = padded.unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # (B, Nmax, 3, H, D)
        return q, k, v, mask


@register("attention", "BiasedTransformer", breaks=("batch_vector",))
class BiasedFullAttention(nn.Module):
    r"""Full attention with a number for each pair of nodes and head added to the scores: Graphormer's attention.

    .. math:: \mathrm{out}(\mathrm{concat}_h \, \mathrm{softmax}(Q_h K_h^T / \sqrt{D} + B_h) V_h)

    (Ying et al. 2021, equations 6 and 7.) Row 0 of ``context.pair_index`` attends to row 1 with the biases in
    ``context.pair_attr``; those of a pair that is listed twice are added, a pair that is not listed has none. Memory is
    that of sum_g N_g^2 * num_heads numbers where the C loops run; elsewhere graphs are padded to the largest one.

    Args:
        dim (int): channels in and out.
        num_heads (int): heads; must divide dim.
        dropout (float, optional): probability to drop an attention weight, in training only. (default: 0.0)

    Shapes:
        x (N, dim); context a GraphContext with pair_index (2, P) and pair_attr (P, num_heads); returns (N, dim).
        Gradients flow to x and to the biases.

    Raises:
        ValueError: as `FullAttention`; when called: there are no biases, or not one column per head.
    """

    def __init__(self, dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = FullAttention(dim, num_heads, dropout)

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each graph: x (N, dim) -> (N, dim)."""
        context, attention = GraphContext.of(context, x), self.attention
        qkv, theta = attention.qkv(x), pair_bias(context, attention.num_heads)
        options = {"scale": 1 / math.sqrt(x.size(1) / attention.num_heads), "theta": theta}
        dropout = attention.dropout if self.training else 0.0
        return attention.out(pair_attention(qkv, context, attention.num_heads, dropout=dropout, **options))

    @torch.no_grad()
    def attention_graph(self, x: Tensor, context: GraphContext | Tensor | None = None) -> AttentionGraph:
        """Return all weights, as `FullAttention` does."""
        context = GraphContext.of(context, x)
        bias = padded_pairs(pair_bias(context, self.attention.num_heads), context)
        return self.attention.weights(x, context, bias)


def pair_bias(context: GraphContext, num_heads: int) -> Tensor:
    """Return the biases of all pairs, (H, P) in the order of `all_pairs`; ValueError where there are none."""
    if context.pair_index is None or context.pair_attr is None:
        raise InputError(
            "BiasedTransformer needs a bias for each pair of nodes, and this data has none: set "
            "posenc_GraphormerBias.enable True (and node_degrees_only False there), or take Transformer"
        )
    if context.pair_attr.dim() != 2 or context.pair_attr.size(1) != num_heads:
        raise InputError(
            f"BiasedTransformer has {num_heads} heads (gt.n_heads), but the bias of pairs has shape "
            f"{tuple(context.pair_attr.shape)}: give one column per head"
        )
    return complete_pairs(context).T
