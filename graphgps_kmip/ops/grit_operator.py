"""GRIT's attention over pairs of nodes (Ma et al. 2023, equations 2 to 4) as an operator: plain, and chunk by chunk.

GRIT computes a vector for each pair of nodes, so that time is no problem of the number of pairs alone but of pairs
times channels, and so is memory: the plain form keeps some ten such tensors in each layer. The chunked form keeps one,
the pair features themselves, and computes all others again in the backward pass, for the pairs of a few queries at a
time, which fit into the cache. Where the pairs are complete they are grouped by query, so that a softmax over the keys
of a query, or a sum over them, is one over an axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear

from graphgps_kmip.ops.edge_attention import edge_softmax
from graphgps_kmip.ops.host_copies import host_copy
from graphgps_kmip.ops.operators import refuse_second_derivative
from graphgps_kmip.ops.sparse_attention import dropped

# Entries (pairs times channels) of one chunk; it has some ten temporaries.
CHUNK_ENTRIES = {"cpu": 2**19}
CHUNK_ENTRIES_ELSEWHERE = 2**25


@dataclass(frozen=True)
class PairSettings:
    """Numbers of `grit_attention`.

    Args:
        num_heads (int): heads H.
        clamp (float, optional): largest absolute value of a logit; None: any. (default: 5.0)
        relu (bool, optional): a ReLU behind the scores. (default: True)
        dropout (float, optional): probability to drop a weight. (default: 0.0)
        pair_dropout (float, optional): probability to drop an entry of the scores where they become pair features.
            (default: 0.0)
    """

    num_heads: int
    clamp: float | None = 5.0
    relu: bool = True
    dropout: float = 0.0
    pair_dropout: float = 0.0


@dataclass(frozen=True, eq=False)
class PairMaps:
    """Weights of `grit_attention`.

    Args:
        edge (Tensor): the map of pair features to a factor (first C rows) and a summand (last C rows) of the scores.
        edge_bias (Tensor): its bias.
        logit (Tensor): weights of a head's scores in its logit.
        out (Tensor, optional): the map of the scores to new pair features. (default: None, the scores themselves)
        out_bias (Tensor, optional): its bias. (default: None)

    Shapes: edge (2C, C), edge_bias (2C,), logit (C,), out (C, C), out_bias (C,).
    """

    edge: Tensor
    edge_bias: Tensor
    logit: Tensor
    out: Tensor | None = None
    out_bias: Tensor | None = None


@dataclass(frozen=True, eq=False)
class PairFeatures:
    """Features of pairs of nodes, ``value * scale + shift``: a norm whose result would be one more large tensor.

    Args:
        value (Tensor): one row per pair.
        index (Tensor, optional): query and key of each pair, in global node ids; None: all pairs of each graph, in the
            order of `all_pairs`. (default: None)
        scale (Tensor, optional): factor of each channel. (default: None, 1)
        shift (Tensor, optional): summand of each channel, given with scale. (default: None, 0)

    Shapes: value (P, C), index (2, P), scale and shift (C,).
    """

    value: Tensor
    index: Tensor | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None

    def normalised(self) -> Tensor:
        """Return the features themselves, (P, C)."""
        return self.value if self.scale is None else torch.addcmul(self.shift, self.value, self.scale)

    def with_value(self, value: Tensor) -> PairFeatures:
        """Return other features of the same pairs."""
        return replace(self, value=value, scale=None, shift=None)


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

    A pair that is given twice counts twice, a query without pairs has zeros. The derivative of :math:`\rho` is
    unbounded near 0 and taken as 0 at 0, as torch's is of a difference of roots of ReLUs; that of the clamp is 0 where
    it holds. Half-precision inputs are computed in float32. Gradients flow to q, k, v, pairs and maps. On a CPU,
    results repeat bit for bit.

    Complete pairs cost 8 P C^2 multiplications, and 16 more in the backward pass; of P C numbers only ``pairs.value``
    is kept. A list of pairs is computed at once, in the plain form.

    Args:
        q (Tensor): queries.
        k (Tensor): keys.
        v (Tensor): values.
        pairs (PairFeatures): e.
        ptr (Tensor): first node of each graph, and N at the end.
        maps (PairMaps): the weights.
        settings (PairSettings): heads, clamp, dropouts.
        update_pairs (bool, optional): False leaves out the new pair features and returns None. (default: True)

    Shapes:
        q, k, v (N, C), pairs (P, C), ptr (B+1,); returns o (N, C), r (N, C), e' (P, C) or None.
    """
    device, wide = v.device.type, torch.promote_types(v.dtype, torch.float32)
    index, (rows, dim) = pairs.index, pairs.value.shape
    masks = _mask((rows, settings.num_heads), settings.dropout, v), None
    if update_pairs:
        masks = masks[0], _mask((rows, dim), settings.pair_dropout, v)
    tensors = (q, k, v, pairs.value, pairs.scale, pairs.shift, *_fields(maps))
    tensors = tuple(None if one is None else one.to(wide) for one in tensors)
    with torch.autocast(device, enabled=False):
        if index is None:
            out = _GRITAttention.apply(*tensors, ptr, masks, settings, update_pairs)
        else:
            out = _plain(*tensors, index=index, masks=masks, settings=settings, update_pairs=update_pairs)
    return out[0].to(v.dtype), out[1].to(v.dtype), out[2].to(pairs.value.dtype) if update_pairs else None


def _fields(maps: PairMaps) -> tuple[Tensor | None, ...]:
    return maps.edge, maps.edge_bias, maps.logit, maps.out, maps.out_bias


def _mask(shape: tuple[int, int], dropout: float, like: Tensor) -> Tensor | None:
    return torch.rand(shape, device=like.device) >= dropout if dropout > 0 else None


def signed_root(x: Tensor) -> Tensor:
    """Return ``sign(x) sqrt(|x|)``, with all derivatives 0 at 0.

    A difference of roots of ReLUs, as in the public code, has the same first derivative, but its second one is NaN.

    Shapes: any.
    """
    return x.abs().masked_fill(x == 0, 1.0).sqrt() * x.sign()


def _plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    value: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    edge: Tensor,
    edge_bias: Tensor,
    logit: Tensor,
    out: Tensor | None,
    out_bias: Tensor | None,
    *,
    index: Tensor,
    masks: tuple[Tensor | None, Tensor | None],
    settings: PairSettings,
    update_pairs: bool,
) -> tuple[Tensor, ...]:
    """The operator in torch operations, all pairs at once."""
    (query, key), num_heads = index, settings.num_heads
    e = PairFeatures(value, scale=scale, shift=shift).normalised()
    factor, summand = linear(e, edge, edge_bias).chunk(2, dim=1)
    s = signed_root((q[query] + k[key]) * factor) + summand
    s = s.relu() if settings.relu else s
    z = (s * logit).unflatten(1, (num_heads, -1)).sum(-1)  # (P, H)
    z = z if settings.clamp is None else z.clamp(-settings.clamp, settings.clamp)
    # the public code adds 1e-16 to the sum of the weights, which is at least 1: no number changes
    weight = dropped(edge_softmax(z, query, len(q)), masks[0], settings.dropout)[..., None]  # (P, H, 1)
    attended, rows = (
        torch.zeros_like(q).index_add(0, query, (weight * one.unflatten(1, (num_heads, -1))).flatten(1))
        for one in (v[key], s)
    )
    if not update_pairs:
        return attended, rows
    s = dropped(s, masks[1], settings.pair_dropout)
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
    """Return the (C, H) matrix whose column h has the C / H numbers of head h in its rows, and zeros."""
    return torch.block_diag(*logit.view(num_heads, -1, 1))


@dataclass(frozen=True, eq=False)
class _Scores:
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
    """Complete pairs: B graphs, all their pairs, grouped by query."""

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
            one = _scores(inner, chunk, settings)
            weight = dropped(one.weight, _rows(masks[0], rows, one.weight), settings.dropout)
            heads = weight.permute(2, 0, 1) @ v[keys].unflatten(1, (settings.num_heads, -1)).transpose(0, 1)
            attended[queries] = heads.transpose(0, 1).flatten(1)  # heads (H, R, D)
            row_sums[queries] = _weighted(weight, one.s)
            if update_pairs:
                s = dropped(one.s, _rows(masks[1], rows, one.s), settings.pair_dropout)
                new[rows] = one.e + s if out is None else torch.addmm(one.e, s, out.T).add_(out_bias)
        return (attended, row_sums, new) if update_pairs else (attended, row_sums)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Chunk by chunk, with the scores computed anew."""
        *tensors, ptr, mask, pair_mask = ctx.saved_tensors
        settings, masks = ctx.settings, (mask, pair_mask)
        refuse_second_derivative("GRIT attention")
        sums = _Gradients(tensors, masks, settings)
        grad_out, grad_rows = (torch.zeros_like(tensors[0]) if one is None else one for one in grads[:2])
        grad_new = grads[2] if ctx.update_pairs else None
        for chunk in _chunks(host_copy(ptr).diff().tolist(), grad_out.size(1), grad_out.device.type):
            sums.add(chunk, grad_out, grad_rows, None if grad_new is None else grad_new[chunk[2]])
        return *sums.result(), None, None, None, None


def _rows(mask: Tensor | None, rows: slice, like: Tensor) -> Tensor | None:
    return None if mask is None else mask[rows].view(like.shape)


def _weighted(weight: Tensor, s: Tensor) -> Tensor:
    """Sum s over the keys by the weights of its head, (R, n, H) and (R n, C) -> (R, C).

    A matrix product for all pairs of heads, of which the diagonal is kept: less time than a tensor of weighted s.
    """
    queries, num_heads = weight.size(0), weight.size(2)
    products = weight.mT @ s.view(queries, -1, s.size(1))  # (R, H, C)
    return products.unflatten(2, (num_heads, -1)).diagonal(dim1=1, dim2=2).mT.flatten(1)


class _Gradients:
    """Gradients of all inputs of `_GRITAttention`, added up chunk by chunk."""

    def __init__(
        self, tensors: list[Tensor | None], masks: tuple[Tensor | None, Tensor | None], settings: PairSettings
    ) -> None:
        self.settings, self.masks = settings, masks
        _, _, self.v, self.value, self.scale, _, self.edge, _, self.logit, self.out, _ = tensors
        self.blocks = _diagonal_blocks(self.logit, settings.num_heads)  # (C, H)
        self.inner = (*tensors[:8], self.blocks)
        heads = torch.arange(settings.num_heads, device=self.v.device)
        self.head = heads.repeat_interleave(len(self.logit) // settings.num_heads)  # of each channel
        self.in_head = (self.head[:, None] == heads).to(self.v.dtype)  # (C, H)
        self.sums = [None if one is None else torch.zeros_like(one) for one in tensors]
        self.sums[3] = torch.empty_like(self.value)  # each row is set once
        self.block_sums = torch.zeros_like(self.blocks)

    def add(
        self, chunk: tuple[slice, slice, slice], grad_out: Tensor, grad_rows: Tensor, grad_new: Tensor | None
    ) -> None:
        """Add those of a chunk: grad_out and grad_rows (N, C), grad_new (R n, C)."""
        queries, _, rows = chunk
        one = _scores(self.inner, chunk, self.settings)
        grad_s = None if grad_new is None else self._of_update(one, grad_new, rows)
        grad_s = self._of_attention(one, grad_s, chunk, grad_out[queries], grad_rows[queries])
        grad_e = self._of_scores(one, grad_s, chunk)
        grad_e = grad_e if grad_new is None else grad_e.add_(grad_new)
        if self.scale is not None:
            self.sums[4] += (grad_e * self.value[rows]).sum(0)
            self.sums[5] += grad_e.sum(0)
            grad_e *= self.scale
        self.sums[3][rows] = grad_e

    def result(self) -> list[Tensor | None]:
        """Return the gradients, in the order of the inputs."""
        self.sums[8] = self.block_sums.gather(1, self.head[:, None])[:, 0]
        return self.sums

    def _of_update(self, one: _Scores, grad_new: Tensor, rows: slice) -> Tensor:
        keep, dropout = _rows(self.masks[1], rows, one.s), self.settings.pair_dropout
        if self.out is None:
            return dropped(grad_new, keep, dropout)
        self.sums[9].addmm_(grad_new.T, dropped(one.s, keep, dropout))
        self.sums[10] += grad_new.sum(0)
        return dropped(grad_new @ self.out, keep, dropout)

    def _of_attention(
        self,
        one: _Scores,
        grad_s: Tensor | None,
        chunk: tuple[slice, slice, slice],
        grad_out: Tensor,
        grad_rows: Tensor,
    ) -> Tensor:
        """Return the gradient of s, from the weights of the attention, too, (R n, C)."""
        _, keys, rows = chunk
        num_heads, dropout = self.settings.num_heads, self.settings.dropout
        s, keep = one.s.view(*one.weight.shape[:2], -1), _rows(self.masks[0], rows, one.weight)
        grad_heads = grad_out.unflatten(1, (num_heads, -1)).transpose(0, 1)  # (H, R, D)
        v = self.v[keys].unflatten(1, (num_heads, -1)).transpose(0, 1)  # (H, n, D)
        grad_blocks = grad_rows[..., None] * self.in_head  # (R, C, H)
        grad_weight = (grad_heads @ v.mT).permute(1, 2, 0) + s @ grad_blocks  # (R, n, H)
        grad_weight = dropped(grad_weight, keep, dropout)
        weight = dropped(one.weight, keep, dropout)
        self.sums[2][keys] += (weight.permute(2, 1, 0) @ grad_heads).transpose(0, 1).flatten(1)
        grad_logit = one.weight * (grad_weight - (one.weight * grad_weight).sum(1, keepdim=True))
        if self.settings.clamp is not None:
            grad_logit.masked_fill_(one.logit.abs() > self.settings.clamp, 0.0)
        self.block_sums.addmm_(one.s.T, grad_logit.flatten(0, 1))
        both = torch.cat([weight, grad_logit], dim=2)  # (R, n, 2H)
        maps = torch.cat([grad_blocks.mT, self.blocks.T.expand(len(s), -1, -1)], dim=1)  # (R, 2H, C)
        total = both @ maps if grad_s is None else torch.baddbmm(grad_s.view(s.shape), both, maps)
        return total.flatten(0, 1)

    def _of_scores(self, one: _Scores, grad_s: Tensor, chunk: tuple[slice, slice, slice]) -> Tensor:
        """Return the gradient of e, (R n, C), without that of the residual."""
        queries, keys, _ = chunk
        if self.settings.relu:
            grad_s = torch.ops.aten.threshold_backward(grad_s, one.s, 0)
        double = one.root.abs_().mul_(2)
        grad_product = grad_s / double.masked_fill_(double == 0, torch.inf)  # 0 where the root is 0
        dim = grad_s.size(1)
        both = grad_s.new_empty(len(grad_s), 2 * dim)
        torch.mul(grad_product, one.total, out=both[:, :dim])
        both[:, dim:] = grad_s
        grad_total = grad_product.mul_(one.factor).view(queries.stop - queries.start, -1, dim)
        self.sums[0][queries] += grad_total.sum(1)
        self.sums[1][keys] += grad_total.sum(0)
        self.sums[6].addmm_(both.T, one.e)
        self.sums[7] += both.sum(0)
        return both @ self.edge
