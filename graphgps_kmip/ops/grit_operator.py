"""GRIT's attention over pairs of nodes (Ma et al. 2023, equations 2 to 4) as an operator: plain, and chunk by chunk.

The plain form keeps some ten tensors of pairs times channels in each layer; the chunked form, for complete pairs, keeps
the pair features and computes the others again in the backward pass, for a few queries at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear

from graphgps_kmip.ops.context import edge_softmax
from graphgps_kmip.ops.host_copies import host_copy
from graphgps_kmip.ops.operators import refuse_second_derivative
from graphgps_kmip.ops.sparse_attention import drop_weights

CHUNK_ENTRIES = {"cpu": 2**19}  # pairs times channels of one chunk, which has some ten temporaries
CHUNK_ENTRIES_ELSEWHERE = 2**25


@dataclass(frozen=True)
class PairSettings:
    """Numbers of `grit_attention`."""

    num_heads: int
    clamp: float | None = 5.0  # largest absolute value of a logit; None: any
    relu: bool = True  # after the scores
    dropout: float = 0.0  # probability to drop a weight
    pair_dropout: float = 0.0  # .. and an entry of the scores where they become pair features


class PairMaps(NamedTuple):
    """Weights of `grit_attention`."""

    edge: Tensor  # (2C, C) map of pair features to a factor (first C rows) and a summand of the scores
    edge_bias: Tensor  # (2C,)
    logit: Tensor  # (C,) weights of a head's scores in its logit
    out: Tensor | None = None  # (C, C) map of the scores to new pair features; None: the scores themselves
    out_bias: Tensor | None = None  # (C,)


class PairFeatures(NamedTuple):
    """Features of pairs of nodes, ``value * scale + shift``: a norm whose result would be one more large tensor.

    Without an index these are all pairs of each graph, in the order of `all_pairs`.
    """

    value: Tensor  # (P, C)
    index: Tensor | None = None  # (2, P) query and key of each pair, in global node ids
    scale: Tensor | None = None  # (C,)
    shift: Tensor | None = None  # (C,), given with scale

    def normalised(self) -> Tensor:
        """Return the features themselves, (P, C)."""
        return self.value if self.scale is None else torch.addcmul(self.shift, self.value, self.scale)


def grit_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pairs: PairFeatures,
    ptr: Tensor,
    maps: PairMaps,
    settings: PairSettings,
    *,
    update_pairs: bool = True,
) -> tuple[Tensor, Tensor, Tensor | None]:
    r"""Attend over pairs with scores that are vectors, which become the new pair features.

    .. math::
        s_{ij} &= \mathrm{relu}(\rho((q_i + k_j) \odot W_w e_{ij}) + W_b e_{ij}), \qquad
            \rho(x) = \mathrm{sign}(x) \sqrt{|x|} \\
        a_{ij} &= \mathrm{softmax}_j(\mathrm{clamp}(\langle w, s_{ij} \rangle, -c, c)) \text{ in each head} \\
        o_i &= \textstyle\sum_j a_{ij} v_j, \qquad r_i = \textstyle\sum_j a_{ij} s_{ij}, \qquad
            e_{ij}' = e_{ij} + W_o s_{ij}

    Repeated pairs count twice, a query without pairs has zeros. The derivative of :math:`\rho` is unbounded near 0 and
    taken as 0 at 0. Half-precision inputs are computed in float32. Gradients flow to q, k, v, pairs and maps. On a CPU,
    results repeat bit for bit. Complete pairs cost 8 P C^2 multiplications, and 16 more in the backward pass.

    Args:
        q (Tensor): queries.
        k (Tensor): keys.
        v (Tensor): values.
        pairs (PairFeatures): e.
        ptr (Tensor): first node of each graph, and N at the end.
        maps (PairMaps): the weights.
        settings (PairSettings): heads, clamp, dropouts.
        update_pairs (bool, optional): False leaves out the new pair features and returns None. (default: True)

    Shapes: q, k, v (N, C), pairs (P, C), ptr (B+1,); returns o (N, C), r (N, C), e' (P, C) or None.
    """
    device, wide = v.device.type, torch.promote_types(v.dtype, torch.float32)
    index, (rows, dim) = pairs.index, pairs.value.shape
    masks = _mask((rows, settings.num_heads), settings.dropout, v), None
    if update_pairs:
        masks = masks[0], _mask((rows, dim), settings.pair_dropout, v)
    tensors = (q, k, v, pairs.value, pairs.scale, pairs.shift, *maps)
    tensors = tuple(None if tensor is None else tensor.to(wide) for tensor in tensors)
    with torch.autocast(device, enabled=False):
        if index is None:
            out = _GRITAttention.apply(*tensors, ptr, masks, settings, update_pairs)
        else:
            out = _plain(tensors, index, masks, settings, update_pairs)
    return out[0].to(v.dtype), out[1].to(v.dtype), out[2].to(pairs.value.dtype) if update_pairs else None


def _mask(shape: tuple[int, int], dropout: float, like: Tensor) -> Tensor | None:
    return torch.rand(shape, device=like.device) >= dropout if dropout > 0 else None


def signed_root(x: Tensor) -> Tensor:
    """Return ``sign(x) sqrt(|x|)``, with all derivatives 0 at 0; the public code's second derivative there is NaN."""
    return x.abs().masked_fill(x == 0, 1.0).sqrt() * x.sign()


def _plain(
    tensors: tuple[Tensor | None, ...],
    index: Tensor,
    masks: tuple[Tensor | None, Tensor | None],
    settings: PairSettings,
    update_pairs: bool,
) -> tuple[Tensor, ...]:
    q, k, v, value, scale, shift, edge, edge_bias, logit, out, out_bias = tensors
    (query, key), num_heads = index, settings.num_heads
    e = PairFeatures(value, scale=scale, shift=shift).normalised()
    factor, summand = linear(e, edge, edge_bias).chunk(2, dim=1)
    s = signed_root((q[query] + k[key]) * factor) + summand
    s = s.relu() if settings.relu else s
    z = (s * logit).unflatten(1, (num_heads, -1)).sum(-1)  # (P, H)
    z = z if settings.clamp is None else z.clamp(-settings.clamp, settings.clamp)
    # the public code adds 1e-16 to the sum of the weights, which is at least 1: no number changes
    weight = drop_weights(edge_softmax(z, query, len(q)), masks[0], settings.dropout)[..., None]  # (P, H, 1)
    attended, rows = (
        torch.zeros_like(q).index_add(0, query, (weight * values.unflatten(1, (num_heads, -1))).flatten(1))
        for values in (v[key], s)
    )
    if not update_pairs:
        return attended, rows
    s = drop_weights(s, masks[1], settings.pair_dropout)
    return attended, rows, e + (s if out is None else linear(s, out, out_bias))


def _chunks(sizes: list[int], dim: int, device: str) -> Iterator[tuple[slice, slice, slice]]:
    """Yield queries, keys (nodes of the queries' graph) and pairs, of some queries of one graph at a time."""
    entries = CHUNK_ENTRIES.get(device, CHUNK_ENTRIES_ELSEWHERE)
    first = pair = 0
    for size in sizes:
        step = max(1, entries // max(1, size * dim))
        for start in range(0, size, step):
            queries = min(step, size - start)
            yield (
                slice(first + start, first + start + queries),
                slice(first, first + size),
                slice(pair, pair + queries * size),
            )
            pair += queries * size
        first += size


def _diagonal_blocks(logit: Tensor, num_heads: int) -> Tensor:
    return torch.block_diag(*logit.view(num_heads, -1, 1))


class _Scores(NamedTuple):
    """What one chunk of R queries and n keys computes: of (R n, C) entries e, sum q + k, factor, root, s; weights."""

    e: Tensor
    total: Tensor
    factor: Tensor
    root: Tensor
    s: Tensor
    logit: Tensor  # (R, n, H), before the clamp
    weight: Tensor  # (R, n, H), before the dropout


def _scores(tensors: tuple[Tensor | None, ...], chunk: tuple[slice, slice, slice], settings: PairSettings) -> _Scores:
    q, k, _, value, scale, shift, edge, edge_bias, blocks = tensors
    queries, keys, rows = chunk
    e = value[rows] if scale is None else torch.addcmul(shift, value[rows], scale)
    dim = e.size(1)
    factor = torch.addmm(edge_bias[:dim], e, edge[:dim].T)
    total = (q[queries, None] + k[keys]).view(-1, dim)
    product = total * factor
    root = product.abs().sqrt_().copysign_(product)
    s = torch.addmm(edge_bias[dim:], e, edge[dim:].T).add_(root)
    s = s.relu_() if settings.relu else s
    logit = (s @ blocks).view(queries.stop - queries.start, -1, settings.num_heads)
    clamped = logit if settings.clamp is None else logit.clamp(-settings.clamp, settings.clamp)
    return _Scores(e, total, factor, root, s, logit, clamped.softmax(1))


class _GRITAttention(Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, ...]:
        """Shapes: q, k, v (N, C), value (P, C), weights as in `PairMaps`; returns (N, C), (N, C) and perhaps (P, C)."""
        *tensors, ptr, masks, settings, update_pairs = args
        ctx.save_for_backward(*tensors, ptr, *masks)
        ctx.settings, ctx.update_pairs = settings, update_pairs
        ctx.set_materialize_grads(False)
        q, _, v, value, *_, logit, out, out_bias = tensors
        inner = (*tensors[:8], _diagonal_blocks(logit, settings.num_heads))
        attended, row_sums = torch.zeros_like(q), torch.zeros_like(q)
        new = torch.empty_like(value) if update_pairs else None
        for chunk in _chunks(host_copy(ptr).diff().tolist(), q.size(1), q.device.type):
            queries, keys, rows = chunk
            scores = _scores(inner, chunk, settings)
            weight = drop_weights(scores.weight, _rows(masks[0], rows, scores.weight), settings.dropout)
            heads = weight.permute(2, 0, 1) @ v[keys].unflatten(1, (settings.num_heads, -1)).transpose(0, 1)
            attended[queries] = heads.transpose(0, 1).flatten(1)  # heads (H, R, D)
            row_sums[queries] = _sum_scores(weight, scores.s)
            if update_pairs:
                s = drop_weights(scores.s, _rows(masks[1], rows, scores.s), settings.pair_dropout)
                new[rows] = scores.e + s if out is None else torch.addmm(scores.e, s, out.T).add_(out_bias)
        return (attended, row_sums, new) if update_pairs else (attended, row_sums)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, ptr, mask, pair_mask = ctx.saved_tensors
        settings, num_heads = ctx.settings, ctx.settings.num_heads
        refuse_second_derivative("GRIT attention")
        q, _, v, value, scale, _, edge, _, logit, out, _ = tensors
        grad_out, grad_rows = (torch.zeros_like(q) if grad is None else grad for grad in grads[:2])
        grad_new = grads[2] if ctx.update_pairs else None
        blocks = _diagonal_blocks(logit, num_heads)  # (C, H)
        inner, block_sums = (*tensors[:8], blocks), torch.zeros_like(blocks)
        heads = torch.arange(num_heads, device=v.device)
        head = heads.repeat_interleave(len(logit) // num_heads)  # of each channel
        in_head = (head[:, None] == heads).to(v.dtype)  # (C, H)
        sums = [None if tensor is None else torch.zeros_like(tensor) for tensor in tensors]
        sums[3] = torch.empty_like(value)  # each row is set once
        for chunk in _chunks(host_copy(ptr).diff().tolist(), q.size(1), q.device.type):
            queries, keys, rows = chunk
            scores, grad_s = _scores(inner, chunk, settings), None
            if grad_new is not None:
                new, keep = grad_new[rows], _rows(pair_mask, rows, scores.s)
                grad_s = new if out is None else new @ out
                if out is not None:
                    sums[9].addmm_(new.T, drop_weights(scores.s, keep, settings.pair_dropout))
                    sums[10] += new.sum(0)
                grad_s = drop_weights(grad_s, keep, settings.pair_dropout)
            s, keep = scores.s.view(*scores.weight.shape[:2], -1), _rows(mask, rows, scores.weight)  # (R, n, C)
            grad_heads = grad_out[queries].unflatten(1, (num_heads, -1)).transpose(0, 1)  # (H, R, D)
            values = v[keys].unflatten(1, (num_heads, -1)).transpose(0, 1)  # (H, n, D)
            grad_blocks = grad_rows[queries][..., None] * in_head  # (R, C, H)
            grad_weight = (grad_heads @ values.mT).permute(1, 2, 0) + s @ grad_blocks  # (R, n, H)
            grad_weight = drop_weights(grad_weight, keep, settings.dropout)
            weight = drop_weights(scores.weight, keep, settings.dropout)
            sums[2][keys] += (weight.permute(2, 1, 0) @ grad_heads).transpose(0, 1).flatten(1)
            grad_logit = scores.weight * (grad_weight - (scores.weight * grad_weight).sum(1, keepdim=True))
            if settings.clamp is not None:
                grad_logit.masked_fill_(scores.logit.abs() > settings.clamp, 0.0)
            block_sums.addmm_(scores.s.T, grad_logit.flatten(0, 1))
            both = torch.cat([weight, grad_logit], dim=2)  # (R, n, 2H)
            maps = torch.cat([grad_blocks.mT, blocks.T.expand(len(s), -1, -1)], dim=1)  # (R, 2H, C)
            grad_s = both @ maps if grad_s is None else torch.baddbmm(grad_s.view(s.shape), both, maps)
            grad_e = _add_scores(sums, scores, grad_s.flatten(0, 1), chunk, settings.relu) @ edge
            grad_e = grad_e if grad_new is None else grad_e.add_(grad_new[rows])
            if scale is not None:
                sums[4] += (grad_e * value[rows]).sum(0)
                sums[5] += grad_e.sum(0)
                grad_e *= scale
            sums[3][rows] = grad_e
        sums[8] = block_sums.gather(1, head[:, None])[:, 0]
        return *sums, None, None, None, None


def _add_scores(
    sums: list[Tensor | None], scores: _Scores, grad_s: Tensor, chunk: tuple[slice, slice, slice], relu: bool
) -> Tensor:
    """Add the gradients of q, k and the map of e; return those of the factor and the summand, (R n, 2C)."""
    (queries, keys, _), dim = chunk, grad_s.size(1)
    if relu:
        grad_s = torch.ops.aten.threshold_backward(grad_s, scores.s, 0)
    double = scores.root.abs_().mul_(2)
    grad_product = grad_s / double.masked_fill_(double == 0, torch.inf)  # 0 where the root is 0
    both = grad_s.new_empty(len(grad_s), 2 * dim)
    torch.mul(grad_product, scores.total, out=both[:, :dim])
    both[:, dim:] = grad_s
    grad_total = grad_product.mul_(scores.factor).view(queries.stop - queries.start, -1, dim)
    sums[0][queries] += grad_total.sum(1)
    sums[1][keys] += grad_total.sum(0)
    sums[6].addmm_(both.T, scores.e)
    sums[7] += both.sum(0)
    return both


def _rows(mask: Tensor | None, rows: slice, like: Tensor) -> Tensor | None:
    return None if mask is None else mask[rows].view(like.shape)


def _sum_scores(weight: Tensor, s: Tensor) -> Tensor:
    """Sum s over the keys by the weights of its head, (R, n, H) and (R n, C) -> (R, C), without a tensor of both."""
    queries, num_heads = weight.size(0), weight.size(2)
    products = weight.mT @ s.view(queries, -1, s.size(1))  # (R, H, C)
    return products.unflatten(2, (num_heads, -1)).diagonal(dim1=1, dim2=2).mT.flatten(1)
