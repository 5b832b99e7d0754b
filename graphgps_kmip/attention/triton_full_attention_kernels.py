"""Triton kernels of full attention in each graph, device side; importing this file imports triton, which is optional.

Tiles of queries walk the keys of their graph with a running softmax, as flash attention does (Dao et al. 2022), and the
backward pass computes weights again, once by tiles of keys and once by tiles of queries (Dao 2023): nothing is added
atomically. Biases and factors of keys and pairs enter scores and weights tile by tile. Dropout is the hash of
``native/full_attention.c``.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["seed"])
def forward_kernel(
    qkv,  # (N, 3 H D)
    key_bias,  # (N, H), or anything without HAS_KEY_BIAS
    theta,  # (H, P), or anything without HAS_THETA
    phi,  # (H, P), or anything without HAS_PHI
    tile_graph,  # (T,)
    tile_row,  # (T,) first query
    ptr,  # (B + 1,)
    pair_ptr,  # (B + 1,)
    out,  # (N, H D), out
    lse,  # (N, H), out: logarithm of the sum of exponentials, +inf for a query without keys
    num_pairs,  # P
    seed,
    SCALE: tl.constexpr,
    DROPPED: tl.constexpr,  # weights with a hash below are dropped, 0: none
    KEPT_PART: tl.constexpr,  # 1 - dropout
    H: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,  # D padded to a power of two >= 16
    TILE: tl.constexpr,
    HAS_KEY_BIAS: tl.constexpr,
    HAS_THETA: tl.constexpr,
    HAS_PHI: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Output of one tile of queries (program 0) and one head (program 1)."""
    head = tl.program_id(1)
    kind: tl.constexpr = lse.dtype.element_ty
    graph, rows, begin, size, pair = _tile(tile_graph, tile_row, ptr, pair_ptr, num_pairs, head, TILE)
    qkv, key_bias, theta, phi = qkv + (3 * H * begin + head) * D, key_bias + begin * H + head, theta + pair, phi + pair
    q = _load(qkv, rows, size, D, WIDTH, 3 * H * D)
    top, total = tl.full([TILE], float("-inf"), kind), tl.zeros([TILE], kind)
    result = tl.zeros([TILE, WIDTH], kind)
    for first in range(0, size, TILE):
        columns = first + tl.arange(0, TILE)
        k = _load(qkv + H * D, columns, size, D, WIDTH, 3 * H * D)
        v = _load(qkv + 2 * H * D, columns, size, D, WIDTH, 3 * H * D)
        score = _scores(q, k, rows, columns, size, key_bias, theta, SCALE, H, HAS_KEY_BIAS, HAS_THETA, PRECISION)
        largest = tl.maximum(top, tl.max(score, axis=1))
        base = tl.where(largest == float("-inf"), 0.0, largest)
        weight, shrink = tl.exp(score - base[:, None]), tl.exp(top - base)
        total, top = total * shrink + tl.sum(weight, axis=1), largest
        weight = _dropped(weight, rows, columns, graph * H + head, seed, DROPPED, KEPT_PART)
        weight = _plus_phi(weight, rows, columns, size, phi, HAS_PHI)
        result = result * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
    empty = total == 0.0
    total = tl.where(empty, 1.0, total)
    _store(out + (H * begin + head) * D, result / total[:, None], rows, size, D, WIDTH, H * D)
    sums = tl.where(empty, float("inf"), top + tl.log(total))
    tl.store(lse + begin * H + head + rows * H, sums, mask=rows < size)


@triton.jit(do_not_specialize=["seed"])
def backward_keys_kernel(
    qkv, key_bias, theta, phi, tile_graph, tile_row, ptr, pair_ptr,  # as in the forward; tiles of keys
    grad_out,  # (N, H D)
    lse,  # (N, H)
    delta,  # (N, H) <grad_out, out>
    grad_qkv,  # (N, 3 H D), out: keys and values
    grad_key_bias,  # (N, H), out with GRAD_KEY_BIAS
    grad_theta,  # (H, P), out with GRAD_THETA
    grad_phi,  # (H, P), out with GRAD_PHI
    num_pairs,
    seed,
    SCALE: tl.constexpr,
    DROPPED: tl.constexpr,
    KEPT_PART: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    HAS_KEY_BIAS: tl.constexpr,
    HAS_THETA: tl.constexpr,
    HAS_PHI: tl.constexpr,
    GRAD_KEY_BIAS: tl.constexpr,
    GRAD_THETA: tl.constexpr,
    GRAD_PHI: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one tile of keys (program 0) and one head (program 1), and of all pairs of these keys."""
    head = tl.program_id(1)
    kind: tl.constexpr = lse.dtype.element_ty
    graph, columns, begin, size, pair = _tile(tile_graph, tile_row, ptr, pair_ptr, num_pairs, head, TILE)
    qkv, key_bias, theta, phi = qkv + (3 * H * begin + head) * D, key_bias + begin * H + head, theta + pair, phi + pair
    grad_qkv, grad_out = grad_qkv + (3 * H * begin + head) * D, grad_out + (H * begin + head) * D
    lse, delta = lse + begin * H + head, delta + begin * H + head
    k = _load(qkv + H * D, columns, size, D, WIDTH, 3 * H * D)
    v = _load(qkv + 2 * H * D, columns, size, D, WIDTH, 3 * H * D)
    grad_k, grad_v, grad_bias = tl.zeros([TILE, WIDTH], kind), tl.zeros([TILE, WIDTH], kind), tl.zeros([TILE], kind)
    for first in range(0, size, TILE):
        rows = first + tl.arange(0, TILE)
        q = _load(qkv, rows, size, D, WIDTH, 3 * H * D)
        grad = _load(grad_out, rows, size, D, WIDTH, H * D)
        score = _scores(q, k, rows, columns, size, key_bias, theta, SCALE, H, HAS_KEY_BIAS, HAS_THETA, PRECISION)
        weight = tl.exp(score - tl.load(lse + rows * H, mask=rows < size, other=float("inf"))[:, None])
        used = _dropped(weight, rows, columns, graph * H + head, seed, DROPPED, KEPT_PART)
        product = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
        place, there = _pair_places(rows, columns, size)
        if GRAD_PHI:
            tl.store(grad_phi + pair + place, (used * product).to(grad_phi.dtype.element_ty), mask=there)
        used = _plus_phi(used, rows, columns, size, phi, HAS_PHI)
        grad_v += tl.dot(tl.trans(used.to(grad.dtype)), grad, input_precision=PRECISION)
        slope = used * product - weight * tl.load(delta + rows * H, mask=rows < size, other=0.0)[:, None]
        if GRAD_THETA:
            tl.store(grad_theta + pair + place, slope.to(grad_theta.dtype.element_ty), mask=there)
        if GRAD_KEY_BIAS:
            grad_bias += tl.sum(slope, axis=0)
        grad_k += tl.dot(tl.trans(slope.to(q.dtype)), q, input_precision=PRECISION)
    _store(grad_qkv + H * D, grad_k * SCALE, columns, size, D, WIDTH, 3 * H * D)
    _store(grad_qkv + 2 * H * D, grad_v, columns, size, D, WIDTH, 3 * H * D)
    if GRAD_KEY_BIAS:
        here = grad_key_bias + begin * H + head + columns * H
        tl.store(here, grad_bias.to(grad_key_bias.dtype.element_ty), mask=columns < size)


@triton.jit(do_not_specialize=["seed"])
def backward_queries_kernel(
    qkv, key_bias, theta, phi, tile_graph, tile_row, ptr, pair_ptr,  # as in the forward
    grad_out,  # (N, H D)
    lse,  # (N, H)
    delta,  # (N, H)
    grad_qkv,  # (N, 3 H D), out: queries
    num_pairs,
    seed,
    SCALE: tl.constexpr,
    DROPPED: tl.constexpr,
    KEPT_PART: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    HAS_KEY_BIAS: tl.constexpr,
    HAS_THETA: tl.constexpr,
    HAS_PHI: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one tile of queries (program 0) and one head (program 1)."""
    head = tl.program_id(1)
    kind: tl.constexpr = lse.dtype.element_ty
    graph, rows, begin, size, pair = _tile(tile_graph, tile_row, ptr, pair_ptr, num_pairs, head, TILE)
    qkv, key_bias, theta, phi = qkv + (3 * H * begin + head) * D, key_bias + begin * H + head, theta + pair, phi + pair
    lse, delta = lse + begin * H + head, delta + begin * H + head
    q = _load(qkv, rows, size, D, WIDTH, 3 * H * D)
    grad = _load(grad_out + (H * begin + head) * D, rows, size, D, WIDTH, H * D)
    top = tl.load(lse + rows * H, mask=rows < size, other=float("inf"))
    mean = tl.load(delta + rows * H, mask=rows < size, other=0.0)
    grad_q = tl.zeros([TILE, WIDTH], kind)
    for first in range(0, size, TILE):
        columns = first + tl.arange(0, TILE)
        k = _load(qkv + H * D, columns, size, D, WIDTH, 3 * H * D)
        v = _load(qkv + 2 * H * D, columns, size, D, WIDTH, 3 * H * D)
        score = _scores(q, k, rows, columns, size, key_bias, theta, SCALE, H, HAS_KEY_BIAS, HAS_THETA, PRECISION)
        weight = tl.exp(score - top[:, None])
        used = _dropped(weight, rows, columns, graph * H + head, seed, DROPPED, KEPT_PART)
        used = _plus_phi(used, rows, columns, size, phi, HAS_PHI)
        slope = used * tl.dot(grad, tl.trans(v), input_precision=PRECISION) - weight * mean[:, None]
        grad_q += tl.dot(slope.to(k.dtype), k, input_precision=PRECISION)
    _store(grad_qkv + (3 * H * begin + head) * D, grad_q * SCALE, rows, size, D, WIDTH, 3 * H * D)


@triton.jit
def _tile(tile_graph, tile_row, ptr, pair_ptr, num_pairs, head, TILE: tl.constexpr):
    """Graph of a program, its rows in the graph, first node and number of nodes of the graph, and its first pair.

    Whatever is in tiles is counted from the beginning of the graph, in 32 bits: half as many registers.
    """
    graph = tl.load(tile_graph + tl.program_id(0))
    begin = tl.load(ptr + graph)
    rows = (tl.load(tile_row + tl.program_id(0)) - begin).to(tl.int32) + tl.arange(0, TILE)
    first_pair = tl.load(pair_ptr + graph) + head.to(tl.int64) * num_pairs
    return graph, rows, begin, (tl.load(ptr + graph + 1) - begin).to(tl.int32), first_pair


@triton.jit
def _load(values, rows, size, D: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr):
    """Queries, keys, values or gradients of some nodes, 0 beyond the graph: (TILE, WIDTH)."""
    column = tl.arange(0, WIDTH)
    mask = (rows < size)[:, None] & (column < D)[None, :]
    return tl.load(values + rows[:, None] * STRIDE + column[None, :], mask=mask, other=0.0)


@triton.jit
def _store(values, result, rows, size, D: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr):
    column = tl.arange(0, WIDTH)
    mask = (rows < size)[:, None] & (column < D)[None, :]
    tl.store(values + rows[:, None] * STRIDE + column[None, :], result.to(values.dtype.element_ty), mask=mask)


@triton.jit
def _scores(
    q, k, rows, columns, size, key_bias, theta, SCALE: tl.constexpr, H: tl.constexpr,
    HAS_KEY_BIAS: tl.constexpr, HAS_THETA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores of queries and keys, -inf beyond the graph: (TILE, TILE)."""
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * SCALE
    if HAS_KEY_BIAS:
        score += tl.load(key_bias + columns * H, mask=columns < size, other=0.0).to(score.dtype)[None, :]
    if HAS_THETA:
        place, there = _pair_places(rows, columns, size)
        score += tl.load(theta + place, mask=there, other=0.0).to(score.dtype)
    return tl.where((columns < size)[None, :], score, float("-inf"))


@triton.jit
def _pair_places(rows, columns, size):
    """Where the pairs of these queries and keys are, and which of them there are."""
    return rows[:, None] * size + columns[None, :], (rows < size)[:, None] & (columns < size)[None, :]


@triton.jit
def _plus_phi(weight, rows, columns, size, phi, HAS_PHI: tl.constexpr):
    """Multiply by 1 + phi."""
    if HAS_PHI:
        place, there = _pair_places(rows, columns, size)
        weight = weight * (1.0 + tl.load(phi + place, mask=there, other=0.0).to(weight.dtype))
    return weight


@triton.jit
def _dropped(weight, rows, columns, unit, seed, DROPPED: tl.constexpr, KEPT_PART: tl.constexpr):
    """Multiply by 0, or by 1 / (1 - dropout)."""
    if DROPPED > 0:
        row = _hash(_hash(seed.to(tl.uint64) + unit.to(tl.uint64)) ^ rows.to(tl.uint64))
        x = row.to(tl.uint32)[:, None] + columns.to(tl.uint32)[None, :]
        x = ((x ^ (x >> 16)) * 0x7FEB352D) ^ (row >> 32).to(tl.uint32)[:, None]
        x = (x ^ (x >> 15)) * 0x846CA68B
        weight = tl.where((x ^ (x >> 16)) >= tl.full([], DROPPED, tl.uint32), weight / KEPT_PART, 0.0)
    return weight


@triton.jit
def _hash(bits):
    """SplitMix64: products wrap at 2^64."""
    bits = bits + 0x9E3779B97F4A7C15
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return bits ^ (bits >> 31)
