"""Triton kernel of k-MIP search, device side; importing this file imports triton, which is optional."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def search_kernel(
    q, k, q_turned, k_turned, q_low, k_low, norm_q, norm_k, order, ptr_q, ptr_k, index, score,
    num_q, num_k, num_graphs, num_keys, relative_error, absolute_error, size_class, D: tl.constexpr,  # noqa: ARG001
    WIDTH: tl.constexpr, SLOTS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Find the best keys of one tile of queries (program 0) and one head (program 1).

    q (H, N, WIDTH) and k (H, M, WIDTH) are scaled, 0 beyond D, the keys of a graph by descending norm; q_turned
    (H, D, N) and k_turned (H, D, M) are the same for whole blocks of scores, q_low and k_low for screening.
    norm_q (H, N) and norm_k (H, M) are float32, rounded up; order (H, M) int32 is the row of each key before it was
    sorted; ptr_q and ptr_k (B + 1,) are int32. Written are index (H, N, K) int64 and score (H, N, K), of scaled queries
    and keys.

    num_q, num_k, num_graphs, num_keys are N, M, B, K. A low score has relative_error in units of the norms of its query
    and of the longest key left, absolute_error in units of the norm of its query. Problems of one size_class share what
    autotune measures. WIDTH is D padded to a power of two >= 16, SLOTS K padded to one; QUERIES of a tile, KEYS of a
    block, STEP blocks are screened between two decisions.
    """
    head = tl.program_id(1).to(tl.int64)  # the offset of a head can pass 2^31, those inside it cannot
    q, q_low, q_turned = q + head * num_q * WIDTH, q_low + head * num_q * WIDTH, q_turned + head * num_q * D
    k, k_low, k_turned = k + head * num_k * WIDTH, k_low + head * num_k * WIDTH, k_turned + head * num_k * D
    graph = _find_graph(tl.program_id(0), ptr_q, num_graphs, QUERIES)
    start, stop = tl.load(ptr_q + graph), tl.load(ptr_q + graph + 1)
    start += (tl.program_id(0) - start // QUERIES - graph) * QUERIES
    rows = start + tl.arange(0, QUERIES)
    real = rows < stop
    first, end = tl.load(ptr_k + graph), tl.load(ptr_k + graph + 1)
    reach = tl.load(norm_q + head * num_q + rows, mask=real, other=0.0)
    slots = tl.arange(0, SLOTS)[None, :]
    # an unused slot, or one of an unused row, holds +inf: it is never the worst, so nothing is inserted
    best = tl.where(real[:, None] & (slots < num_keys), float("-inf"), float("inf")).to(q.dtype.element_ty)
    at = tl.full([QUERIES, SLOTS], -1, tl.int32)
    worst = tl.min(best, axis=1)
    alive = (first < end) & (start < stop)
    while alive:
        longest = tl.load(norm_k + head * num_k + first)
        margin = reach * (longest * relative_error + absolute_error)
        peak = _screen(q_low, k_low, rows, real, first, num_k, WIDTH, KEYS, STEP)
        if _any(peak > worst - margin):
            for block in range(STEP):
                best, at = _visit(
                    q, k, q_turned, k_turned, q_low, k_low, rows, real, first + block * KEYS, end, num_q, num_k, margin,
                    best, at, D, WIDTH, SLOTS, KEYS,
                )  # fmt: skip
            worst = tl.min(best, axis=1)
        first += STEP * KEYS
        # Cauchy-Schwarz: <q, k> <= |q| |k|, and no key that is left is longer than the next
        longest = tl.load(norm_k + head * num_k + first, mask=first < end, other=0.0)
        alive = (first < end) & _any(reach * longest > worst)
    offset = head * num_q * num_keys
    _store(index + offset, score + offset, q, k, order + head * num_k, rows, real, at, num_keys, D, WIDTH)


@triton.jit
def _find_graph(tile, ptr_q, num_graphs, QUERIES: tl.constexpr):
    """Graph of a tile: the last one whose first tile is not after it.

    That of graph b is ``ptr_q[b] // QUERIES + b``, which leaves enough tiles for each graph, and at most one too many.
    """
    low, high = 0, num_graphs
    while high - low > 1:
        middle = (low + high) // 2
        is_before = tl.load(ptr_q + middle) // QUERIES + middle <= tile
        low, high = tl.where(is_before, middle, low), tl.where(is_before, high, middle)
    return low


@triton.jit
def _screen(q_low, k_low, rows, real, first, num_k, WIDTH: tl.constexpr, KEYS: tl.constexpr, STEP: tl.constexpr):
    """Largest low-precision score of each query over STEP blocks of keys (beyond the graph's end: a needless hit)."""
    peak = tl.full([rows.shape[0], KEYS], float("-inf"), tl.float32)
    for block in range(STEP):
        columns = first + block * KEYS + tl.arange(0, KEYS)
        peak = tl.maximum(peak, _low_scores(q_low, k_low, rows, real, columns, columns < num_k, WIDTH))
    return tl.max(peak, axis=1)


@triton.jit
def _low_scores(q_low, k_low, rows, real, columns, inside, WIDTH: tl.constexpr):
    """Scores of a block (QUERIES, KEYS) in low precision, 0 outside."""
    dims = tl.arange(0, WIDTH)
    queries = tl.load(q_low + rows[:, None] * WIDTH + dims[None, :], mask=real[:, None], other=0.0)
    keys = tl.load(k_low + columns[None, :] * WIDTH + dims[:, None], mask=inside[None, :], other=0.0)
    return tl.dot(queries, keys)


@triton.jit
def _exact(q_turned, k_turned, rows, real, columns, inside, num_q, num_k, D: tl.constexpr):
    """Scores of a block (QUERIES, KEYS) in the dtype of the input, 0 outside."""
    score = tl.zeros([rows.shape[0], columns.shape[0]], q_turned.dtype.element_ty)
    for dim in range(D):
        x = tl.load(q_turned + dim * num_q + rows, mask=real, other=0.0)
        y = tl.load(k_turned + dim * num_k + columns, mask=inside, other=0.0)
        score += x[:, None] * y[None, :]
    return score


@triton.jit
def _visit(
    q, k, q_turned, k_turned, q_low, k_low, rows, real, first, end, num_q, num_k, margin, best, at,
    D: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Insert what a block of keys adds to the best."""
    columns = first + tl.arange(0, KEYS)
    inside = columns < end
    score = _low_scores(q_low, k_low, rows, real, columns, inside, WIDTH).to(best.dtype)
    score = tl.where(inside[None, :], score, float("-inf"))
    bound = tl.min(best, axis=1) - margin
    if _any(tl.max(score, axis=1) > bound):  # most blocks of a group with a candidate have none
        # more than can be present: nothing was found yet, or there are ties, which would all be scored one by one
        if _any(tl.sum((score > bound[:, None]).to(tl.int32), axis=1) > SLOTS):
            score = _exact(q_turned, k_turned, rows, real, columns, inside, num_q, num_k, D)
            margin *= 0.0
        best, at = _insert(score, margin, q, k, rows, real, first, inside, best, at, WIDTH, SLOTS, KEYS)
    return best, at


@triton.jit
def _insert(
    score, margin, q, k, rows, real, first, inside, best, at,
    WIDTH: tl.constexpr, SLOTS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Score the candidates of each row again, in descending order; a better one replaces the worst of the K best.

    Without margin it ends after K + 1 rounds at most.
    """
    score = tl.where(inside[None, :], score, float("-inf"))
    dims = tl.arange(0, WIDTH)[None, :]
    query = tl.load(q + rows[:, None] * WIDTH + dims, mask=real[:, None], other=0.0)
    columns, slots = tl.arange(0, KEYS)[None, :], tl.arange(0, SLOTS)[None, :]
    top, worst = tl.max(score, axis=1), tl.min(best, axis=1)
    candidate = top > worst - margin
    while _any(candidate):
        column = tl.min(tl.where(score == top[:, None], columns, KEYS), axis=1)
        keys = tl.load(
            k + dims + (first + column)[:, None] * WIDTH, mask=(candidate & (margin > 0))[:, None], other=0.0
        )
        exact = tl.where(margin > 0, tl.sum(query * keys, axis=1), top)
        slot = tl.min(tl.where(best == worst[:, None], slots, SLOTS), axis=1)
        here = (slots == slot[:, None]) & (candidate & (exact > worst))[:, None]
        best = tl.where(here, exact[:, None], best)
        at = tl.where(here, (first + column)[:, None], at)
        score = tl.where(columns == column[:, None], float("-inf"), score)
        top, worst = tl.max(score, axis=1), tl.min(best, axis=1)
        candidate = top > worst - margin
    return best, at


@triton.jit
def _store(index, score, q, k, order, rows, real, at, num_keys, D: tl.constexpr, WIDTH: tl.constexpr):
    """Write the slots by descending score, summed again independent of the tiles; equal ones by index."""
    present = at >= 0
    keys = tl.load(order + at, mask=present, other=-1)
    total = tl.zeros(at.shape, q.dtype.element_ty)
    for dim in range(D):
        x = tl.load(q + rows * WIDTH + dim, mask=real, other=0.0)
        total += x[:, None] * tl.load(k + at * WIDTH + dim, mask=present, other=0.0)
    total = tl.where(present, total, float("-inf"))
    for slot in range(num_keys):
        top = tl.max(total, axis=1)
        key = tl.min(tl.where(total == top[:, None], keys, 2147483647), axis=1)
        place = rows.to(tl.int64) * num_keys + slot
        tl.store(score + place, top, mask=real)
        tl.store(index + place, key.to(tl.int64), mask=real)
        total = tl.where(keys == key[:, None], float("-inf"), total)
        keys = tl.where(keys == key[:, None], -1, keys)


@triton.jit
def _any(condition):
    # The reshape moves nothing. Without it, Triton 3.7 fails for compute capability 10 (B200), whose tensor cores give
    # the condition a layout that its pass over reductions does not expect.
    return tl.max(tl.reshape(condition.to(tl.int32), condition.shape, can_reorder=True), axis=0) > 0
