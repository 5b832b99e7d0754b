r"""Full attention with a bias of keys, a bias of pairs and a factor of pairs: PPGT's attention (Ma et al., equation 4).

.. math:: o_i = \sum_j (1 + \phi_{ij}) \, \mathrm{softmax}_j(s \langle q_i, k_j \rangle + \kappa_j + \theta_{ij}) \, v_j

The sum is over the nodes of the graph of i (`pair_attention`), or of a list of pairs (`sparse_pair_attention`). The
factor (URPE, Luo et al. 2022) comes after the softmax. On a CPU the C loops of full attention
(``ops/native/full_attention.c``, with -DPAIRS) need no padding; others pad, with torch's attention without a factor.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import dropout as drop
from torch.nn.functional import scaled_dot_product_attention

from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.context import GraphContext, edge_softmax
from graphgps_kmip.ops.dense import from_padded, to_padded
from graphgps_kmip.ops.native import dtype_flags, load, pointer, unavailable_reason
from graphgps_kmip.ops.operators import overflow, refuse_second_derivative

PAIR_WORK = 50_000  # pairs of nodes and heads that take about as long as starting a thread (20 us)


def pair_attention(
    qkv: Tensor,
    context: GraphContext,
    num_heads: int,
    *,
    scale: float,
    key_bias: Tensor | None = None,
    theta: Tensor | None = None,
    phi: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attend inside each graph with biases of keys, biases of pairs, and factors of pairs (formula: see the module).

    Gradients flow to qkv, key_bias, theta and phi. In the C loops (float32 and float64 on a CPU) results repeat bit for
    bit. Elsewhere the softmax is computed in float32 at least. Cost: sum_g N_g^2 H D time.

    Args:
        qkv (Tensor): queries, keys and values of all heads, side by side.
        context (GraphContext): the graphs.
        num_heads (int): H.
        scale (float): factor of the inner products.
        key_bias (Tensor, optional): added to all scores of a key. (default: None)
        theta (Tensor, optional): added to the score of each pair; -inf removes a pair. (default: None)
        phi (Tensor, optional): the weight of each pair is multiplied by 1 + phi. (default: None)
        dropout (float, optional): probability to drop a weight. (default: 0.0)

    Shapes: qkv (N, 3 H D), key_bias (N, H), theta and phi (H, P) in the order of `all_pairs`; returns (N, H D).

    Raises:
        NotFinite: inputs are finite, but inner products of queries and keys overflow (in the C loops).
    """
    _check_shapes(qkv, context, num_heads, key_bias, theta, phi)
    if not len(qkv):
        return qkv[:, : qkv.size(1) // 3]
    if _kernel_can_run(qkv):
        context.check_ptr()
        seed = int(torch.randint(2**62, ())) if dropout else 0
        pairs = (values if values is None else values.to(qkv.dtype) for values in (key_bias, theta, phi))
        return _PairAttention.apply(qkv, *pairs, context, (num_heads, scale, dropout, seed))
    if phi is None and (qkv.device.type != "cpu" or qkv.dtype not in (torch.float32, torch.float64)):
        return _scaled_dot_product(qkv, key_bias, theta, context, num_heads, scale, dropout)
    return plain_pair_attention(
        qkv, key_bias, theta, phi, context=context, num_heads=num_heads, scale=scale, thin=partial(drop, p=dropout)
    )


def _kernel_can_run(qkv: Tensor) -> bool:
    fits = qkv.device.type == "cpu" and qkv.dtype in (torch.float32, torch.float64)
    return fits and unavailable_reason("full_attention", "-DPAIRS", *dtype_flags(qkv.dtype)) is None


class _PairAttention(Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        *inputs, ctx.context, ctx.sizes = args
        qkv, *pairs = (tensor if tensor is None else tensor.contiguous() for tensor in inputs)
        out, lse = qkv.new_empty(len(qkv), qkv.size(1) // 3), qkv.new_empty(len(qkv), ctx.sizes[0])
        _call(qkv, None, ctx.context, ctx.sizes, (out, lse, None), pairs, (None, None, None))
        # a sum carries a NaN along and is the cheapest look; +inf: a query without pairs
        if math.isnan(lse.sum().item()) and lse.isnan().any() and _all_usable(qkv, *pairs):
            q, k, _ = (float(part.abs().max()) for part in qkv.chunk(3, 1))
            raise overflow(q, k, qkv.dtype)
        ctx.save_for_backward(qkv, *pairs, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out, lse = ctx.saved_tensors
        refuse_second_derivative("attention with biases of pairs")
        required = [True, True, *ctx.needs_input_grad[2:4]]  # the kernel sums the first two anyway
        grad, *grads = (
            torch.empty_like(tensor) if tensor is not None and is_required else None
            for tensor, is_required in zip(inputs, required, strict=True)
        )
        _call(inputs[0], grad_out.contiguous(), ctx.context, ctx.sizes, (out, lse, grad), inputs[1:], grads)
        return grad, *grads, None, None


def _all_usable(qkv: Tensor, *biases: Tensor | None) -> bool:
    """Whether all is finite, or -inf, which removes a pair."""
    return bool(qkv.isfinite().all()) and all(bias is None or bool((bias < torch.inf).all()) for bias in biases)


def _call(
    qkv: Tensor,
    grad_out: Tensor | None,
    context: GraphContext,
    sizes: tuple[int, float, float, int],
    results: tuple[Tensor, Tensor, Tensor | None],
    pairs: Sequence[Tensor | None],
    grads: Sequence[Tensor | None],
) -> None:
    (num_heads, scale, dropout, seed), most = sizes, context.max_nodes
    ptr, pair_ptr = (bounds.long().contiguous() for bounds in (context.ptr, context.pair_ptr))
    failed = load("full_attention", "-DPAIRS", *dtype_flags(qkv.dtype)).pair_attention(
        *map(pointer, (qkv, grad_out, ptr)),
        *map(ctypes.c_long, (context.num_graphs, most)),
        *(num_heads, results[0].size(1) // num_heads),
        *map(ctypes.c_double, (scale, dropout)),
        ctypes.c_uint64(seed),
        max(1, min(torch.get_num_threads(), len(qkv) * most * num_heads // PAIR_WORK)),
        *map(pointer, (*results, pair_ptr, *pairs, *grads)),
    )
    if failed:
        raise MemoryError(f"not enough memory for attention in a graph of {most} nodes")


def _check_shapes(qkv: Tensor, context: GraphContext, num_heads: int, *biases: Tensor | None) -> None:
    for name, values in zip(("key_bias", "theta", "phi"), biases, strict=True):
        if values is not None:
            shape = (len(qkv), num_heads) if name == "key_bias" else (num_heads, context.num_pairs)
            if tuple(values.shape) != shape:
                raise InputError(f"pair attention: {name} must have shape {shape}, got {tuple(values.shape)}")


def plain_pair_attention(
    qkv: Tensor,
    key_bias: Tensor | None,
    theta: Tensor | None,
    phi: Tensor | None,
    *,
    context: GraphContext,
    num_heads: int,
    scale: float,
    thin: Callable[[Tensor], Tensor],
) -> Tensor:
    """Compute `pair_attention` in torch operations on padded graphs; ``thin`` is the dropout of weights."""
    q, k, v, mask = _padded_heads(qkv, context, num_heads)
    wide = torch.promote_types(qkv.dtype, torch.float32)
    score = (q * scale @ k.mT).to(wide)
    bias = _padded_bias(key_bias, theta, context)
    score = (score if bias is None else score + bias).masked_fill(~mask[:, None, None], -torch.inf)
    # a query without a key: finite numbers, and weights that are all 0
    nothing = (score == -torch.inf).all(-1, keepdim=True)
    weight = score.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0).to(v.dtype)
    if phi is not None:
        weight = weight * (1 + padded_pairs(phi.to(v.dtype), context))
    return from_padded((thin(weight) @ v).transpose(1, 2).flatten(2), context)


def _scaled_dot_product(
    qkv: Tensor,
    key_bias: Tensor | None,
    theta: Tensor | None,
    context: GraphContext,
    num_heads: int,
    scale: float,
    dropout: float,
) -> Tensor:
    """Compute `pair_attention` without phi by torch's fused attention."""
    q, k, v, mask = _padded_heads(qkv, context, num_heads)
    seen = (mask | ~mask.any(1, keepdim=True))[:, None, None]  # a graph without nodes sees its padding
    bias = _padded_bias(key_bias, theta, context)
    bias = torch.zeros_like(seen, dtype=q.dtype) if bias is None else bias.to(q.dtype)
    out = scaled_dot_product_attention(q, k, v, bias.masked_fill(~seen, -torch.inf), dropout, scale=scale)
    return from_padded(out.transpose(1, 2).flatten(2), context)


def _padded_heads(qkv: Tensor, context: GraphContext, num_heads: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    padded, mask = to_padded(qkv, context)
    q, k, v = padded.unflatten(2, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)  # (B, Nmax, 3, H, D)
    return q, k, v, mask


def _padded_bias(key_bias: Tensor | None, theta: Tensor | None, context: GraphContext) -> Tensor | None:
    """Return the sum of both, with zeros in the padding: (B, H, Nmax, Nmax) or (B, H, 1, Nmax)."""
    if key_bias is not None:
        key_bias = to_padded(key_bias, context)[0].transpose(1, 2)[:, :, None]  # (B, H, 1, Nmax)
    if theta is None:
        return key_bias
    theta = padded_pairs(theta, context)
    return theta if key_bias is None else theta + key_bias


def padded_pairs(values: Tensor, context: GraphContext) -> Tensor:
    """Pad numbers of all pairs of each graph with zeros: (H, P) -> (B, H, Nmax, Nmax), the query first."""
    shape = len(values), context.num_graphs, context.max_nodes, context.max_nodes
    if context.min_nodes == context.max_nodes:
        return values.reshape(shape).transpose(0, 1)
    query = torch.arange(len(context.batch), device=values.device) - context.ptr[context.batch]  # within its graph
    first = (context.batch * context.max_nodes + query) * context.max_nodes  # place of a query's first pair
    size = context.sizes[context.batch]
    shift = first - context.pair_ptr[context.batch] - query * size
    shift = shift.repeat_interleave(size, output_size=context.num_pairs)  # (P,)
    place = torch.arange(context.num_pairs, device=values.device) + shift
    padded = values.new_zeros(len(values), context.num_graphs * context.max_nodes**2)
    return padded.index_copy(1, place, values).view(shape).transpose(0, 1)


def sparse_pair_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pairs: Tensor,
    *,
    scale: float,
    key_bias: Tensor | None = None,
    theta: Tensor | None = None,
    phi: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attend from queries to the keys of a list of pairs; a query without pairs gets 0.

    ``pairs`` are the row of q and the row of k and v of each pair, in any order; the other arguments, which all have
    gradients, are as in `pair_attention`. Half-precision inputs are computed in float32.

    Shapes: q (N, H, D), k and v (M, H, D), pairs (2, P), key_bias (M, H), theta and phi (P, H); returns (N, H, D).
    """
    query, key = pairs
    wide = torch.promote_types(v.dtype, torch.float32)
    score = scale * (q[query].to(wide) * k[key].to(wide)).sum(-1)  # (P, H)
    score = score if key_bias is None else score + key_bias[key]
    weight = edge_softmax(score if theta is None else score + theta, query, len(q))
    weight = drop(weight if phi is None else weight * (1 + phi), dropout)
    message = weight[..., None] * v[key]
    return message.new_zeros(q.shape).index_add(0, query, message).to(v.dtype)
