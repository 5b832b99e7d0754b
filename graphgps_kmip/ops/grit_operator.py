"""GRIT's attention over pairs of nodes (Ma et al. 2023, equations 2 to 4) as an operator: plain, and chunk by chunk.

The plain form keeps some ten tensors of pairs times channels in each layer. The chunked form, for complete pairs on a
CPU, is products of matrices for some graphs at a time, and a C loop between them (``native/grit_attention.c``). It
keeps two more tensors of the size of the pair features, up to `KEEP_BYTES` of them, and computes the others again in
the backward pass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear

from graphgps_kmip.ops.context import all_pairs, edge_softmax
from graphgps_kmip.ops.native import dtype_flags, load, pointer, unavailable_reason
from graphgps_kmip.ops.operators import refuse_second_derivative
from graphgps_kmip.ops.sparse_attention import drop_weights

CHUNK_ENTRIES = 2**19  # pairs times channels of one chunk: whole graphs, or some queries of a larger one
KEEP_BYTES = 48 * 2**20  # of a layer for its backward pass: those of a batch of ZINC, a tenth of one of Peptides
KERNEL = "grit_attention"
UNITS = 4  # parts of the queries of a chunk of one graph, which threads share
THREAD_WORK = 2**13  # pairs times channels that take about as long as starting a thread


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

    def normalise(self) -> Tensor:
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
        if index is None and device == "cpu" and unavailable_reason(KERNEL, *dtype_flags(wide)) is None:
            out = _GRITAttention.apply(*tensors, ptr, masks, settings, update_pairs)
        else:
            out = _plain(tensors, all_pairs(ptr) if index is None else index, masks, settings, update_pairs)
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
    e = PairFeatures(value, scale=scale, shift=shift).normalise()
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


class _Chunk(NamedTuple):
    """Complete pairs of whole graphs, or of some queries of one graph."""

    queries: slice  # nodes
    keys: slice  # nodes of these graphs
    pairs: slice
    sizes: tuple[int, ...]  # nodes of each graph

    @property
    def is_whole(self) -> bool:
        """Whether the chunk has all queries of its graphs."""
        return self.queries == self.keys

    def units(self) -> list[tuple[int, int, int, int, int, int]]:
        """Return the units of the C loop: numbers as in its struct."""
        units, row, key = [], 0, 0
        if self.is_whole:
            for size in self.sizes:
                units.append((self.keys.start + key, size, self.keys.start + key, size, row, key))
                row, key = row + size * size, key + size
            return units
        [size], number = self.sizes, self.queries.stop - self.queries.start
        bounds = [number * part // UNITS for part in range(UNITS + 1)]
        return [
            (self.queries.start + first, last - first, self.keys.start, size, first * size, place * size)
            for place, (first, last) in enumerate(pairwise(bounds))
        ]


def _chunks(ptr: Tensor, dim: int) -> Iterator[_Chunk]:
    sizes, rows = ptr.diff().tolist(), max(1, CHUNK_ENTRIES // dim)
    node = pair = first = 0
    while first < len(sizes):
        last, count = first + 1, sizes[first] ** 2
        while last < len(sizes) and count + sizes[last] ** 2 <= rows:
            count, last = count + sizes[last] ** 2, last + 1
        part = tuple(sizes[first:last])
        keys = slice(node, node + sum(part))
        step = keys.stop - node if count <= rows else max(1, rows // part[0])
        for start in range(node, keys.stop, max(1, step)):
            queries = slice(start, min(start + step, keys.stop))
            number = count if queries == keys else (queries.stop - start) * part[0]
            yield _Chunk(queries, keys, slice(pair, pair + number), part)
            pair += number
        node, first = keys.stop, last


class _Scores(NamedTuple):
    """What the backward pass reads of the R pairs of a chunk."""

    both: Tensor  # (R, 2C) factor and s
    logit: Tensor  # (R, H), before the clamp
    weight: Tensor  # (R, H), before the dropout

    @property
    def s(self) -> Tensor:
        """Scores (R, C)."""
        return self.both[:, self.both.size(1) // 2 :]


class _Nodes(NamedTuple):
    """Rows of all nodes (N, C), and vectors: weights of scores in their head's logit (C,)."""

    q: Tensor
    k: Tensor
    v: Tensor
    map: Tensor
    bias: Tensor  # (2C,), of factor and summand


def _score_pairs(
    both: Tensor,
    nodes: _Nodes,
    chunk: _Chunk,
    keep: Tensor | None,
    settings: PairSettings,
    values: Tensor,
    rows: Tensor,
) -> _Scores:
    """Add the bias to factor and summand, put scores in place of the latter; set the sums over keys of the queries."""
    shape = len(both), settings.num_heads
    scores = _Scores(both, both.new_empty(shape), both.new_empty(shape))
    _run_kernel("grit_forward", scores, nodes, chunk, keep, settings, values=values, rows=rows)
    return scores


def _score_gradients(
    scores: _Scores,
    nodes: _Nodes,
    chunk: _Chunk,
    keep: Tensor | None,
    settings: PairSettings,
    grad_values: Tensor,
    grad_rows: Tensor,
    grad_s: Tensor | None,
) -> tuple[Tensor, ...]:
    """Return the gradients of factor and summand (R, 2C), of q of the queries, of k and v of the keys, of the map."""
    units, like = chunk.units(), nodes.q
    grad_q, grad_both = torch.empty_like(like), torch.empty_like(scores.both)
    grad_k, grad_v = (like.new_empty(sum(unit[3] for unit in units), like.size(1)) for _ in range(2))
    grads = {"grad_values": grad_values, "grad_rows": grad_rows, "grad_s": grad_s, "grad_scores": grad_both}
    grads |= {"grad_q": grad_q, "grad_k": grad_k, "grad_v": grad_v}
    grads["grad_map"] = grad_map = like.new_empty(len(units), like.size(1))
    _run_kernel("grit_backward", scores, nodes, chunk, keep, settings, **grads)
    num_keys = chunk.keys.stop - chunk.keys.start
    grad_k, grad_v = (sums.view(-1, num_keys, like.size(1)).sum(0) for sums in (grad_k, grad_v))
    return grad_both, grad_q[chunk.queries], grad_k, grad_v, grad_map.sum(0)


class _GRITAttention(Function):
    """Features e = value scale + shift are not made: scale and shift are applied to the maps that read them."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, ...]:
        """Shapes: q, k, v (N, C), value (P, C), weights as in `PairMaps`; returns (N, C), (N, C) and perhaps (P, C)."""
        *tensors, ptr, masks, settings, update_pairs = args
        q, k, v, value, scale, shift, edge, edge_bias, logit, out, out_bias = tensors
        edge_map, bias = _scale_map(edge, edge_bias, scale, shift)
        nodes = _Nodes(q, k, v, logit, bias)
        ctx.settings, ctx.update_pairs = settings, update_pairs
        ctx.set_materialize_grads(False)
        values, rows = torch.empty_like(q), torch.empty_like(q)
        new = torch.empty_like(value) if update_pairs else None
        room, saved = KEEP_BYTES * any(ctx.needs_input_grad), []
        constant = shift if out_bias is None else out_bias if shift is None else shift + out_bias
        for chunk in _chunks(ptr, q.size(1)):
            part = chunk.pairs
            both = value[part] @ edge_map.T
            scores = _score_pairs(both, nodes, chunk, _rows(masks[0], part), settings, values, rows)
            if update_pairs:
                s = drop_weights(scores.s, _rows(masks[1], part), settings.pair_dropout)
                if scale is not None:
                    torch.addcmul(constant, value[part], scale, out=new[part])
                else:
                    new[part] = value[part] if constant is None else value[part] + constant
                new[part].add_(s) if out is None else new[part].addmm_(s, out.T)
            room -= sum(tensor.nbytes for tensor in scores)
            saved += scores if room >= 0 else ()
        ctx.save_for_backward(*tensors, ptr, *masks, *saved)
        return (values, rows, new) if update_pairs else (values, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: with gradient checkpointing each can be unpacked once
        tensors, (ptr, keep, pair_keep), stored = saved[:11], saved[11:14], saved[14:]
        refuse_second_derivative("GRIT attention")
        q, k, v, value, scale, shift, edge, edge_bias, logit, out, _ = tensors
        edge_map, bias = _scale_map(edge, edge_bias, scale, shift)
        settings, nodes = ctx.settings, _Nodes(q, k, v, logit, bias)
        grad_values, grad_rows = (torch.zeros_like(q) if grad is None else grad.contiguous() for grad in grads[:2])
        grad_new = grads[2].contiguous() if ctx.update_pairs and grads[2] is not None else None
        sums = [None if tensor is None or tensor is value else torch.zeros_like(tensor) for tensor in tensors]
        sums[3] = torch.empty_like(value)  # each row is set once
        for number, chunk in enumerate(_chunks(ptr, q.size(1))):
            part, grad_s = chunk.pairs, None
            if 3 * number < len(stored):
                scores = _Scores(*stored[3 * number : 3 * number + 3])
            else:
                unused = torch.empty_like(q), torch.empty_like(q)
                scores = _score_pairs(value[part] @ edge_map.T, nodes, chunk, None, settings, *unused)
            if grad_new is not None:
                grad_s = grad_new[part]
                if out is not None:
                    sums[9].addmm_(grad_s.T, drop_weights(scores.s, _rows(pair_keep, part), settings.pair_dropout))
                    grad_s = grad_s @ out
                grad_s = drop_weights(grad_s, _rows(pair_keep, part), settings.pair_dropout)
            grad_both, *parts = _score_gradients(
                scores, nodes, chunk, _rows(keep, part), settings, grad_values, grad_rows, grad_s
            )
            for total, grad, where in zip(
                (*sums[:3], sums[8]), parts, (chunk.queries, chunk.keys, chunk.keys, slice(None)), strict=True
            ):
                total[where] += grad
            sums[6].addmm_(grad_both.T, value[part])
            sums[7] += grad_both.sum(0)
            grad_value = sums[3][part]
            if grad_new is None:
                torch.mm(grad_both, edge_map, out=grad_value)
                continue
            if scale is None:
                grad_value.copy_(grad_new[part])
            else:
                torch.mul(grad_new[part], scale, out=grad_value)
                sums[4] += (grad_new[part] * value[part]).sum(0)
            grad_value.addmm_(grad_both, edge_map)
        total = 0 if grad_new is None else grad_new.sum(0)
        if out is not None:
            sums[10] += total
        if scale is not None:  # sums[6] is the gradient of edge scale, sums[7] that of edge_bias + edge shift
            sums[4] += (sums[6] * edge).sum(0)
            sums[5] += total + sums[7] @ edge
            sums[6] = torch.addcmul(torch.outer(sums[7], shift), sums[6], scale)
        return *sums, None, None, None, None


def _scale_map(edge: Tensor, bias: Tensor, scale: Tensor | None, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the map and the bias that make factor and summand of features before scale and shift."""
    return (edge, bias) if scale is None else (edge * scale, bias + edge @ shift)


def _rows(mask: Tensor | None, part: slice) -> Tensor | None:
    return None if mask is None else mask[part]


class _Arguments(ctypes.Structure):
    """``native/grit_attention.c``'s struct Grit."""

    _fields_ = [
        *((name, ctypes.c_long) for name in "num_units heads dim relu num_threads".split()),
        *((name, ctypes.c_double) for name in "clamp keep_scale".split()),
        *((name, ctypes.c_void_p) for name in "units q k v map bias scores logit weight keep values rows".split()),
        *((name, ctypes.c_void_p) for name in "grad_values grad_rows grad_s grad_scores grad_q".split()),
        *((name, ctypes.c_void_p) for name in "grad_k grad_v grad_map".split()),
        *((name, ctypes.c_long) for name in "failed next items".split()),
    ]


def _run_kernel(
    function: str,
    scores: _Scores,
    nodes: _Nodes,
    chunk: _Chunk,
    keep: Tensor | None,
    settings: PairSettings,
    **arrays: Tensor | None,
) -> None:
    units, num_heads = torch.tensor(chunk.units()), settings.num_heads
    arrays |= {"scores": scores.both, "logit": scores.logit, "weight": scores.weight, "keep": keep, "units": units}
    arrays |= nodes._asdict()
    arrays = {name: None if array is None else array.contiguous() for name, array in arrays.items()}  # until it returns
    arguments = _Arguments(
        num_units=len(units),
        heads=num_heads,
        dim=len(nodes.map) // num_heads,
        relu=settings.relu,
        num_threads=max(1, min(torch.get_num_threads(), scores.both.numel() // 2 // THREAD_WORK)),
        clamp=torch.inf if settings.clamp is None else settings.clamp,
        keep_scale=1 / (1 - settings.dropout),
        **{name: pointer(array) for name, array in arrays.items()},
    )
    if getattr(load(KERNEL, *dtype_flags(scores.both.dtype)), function)(ctypes.byref(arguments)):
        raise MemoryError("not enough memory for the gradients of GRIT's attention")
