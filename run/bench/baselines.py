"""Frozen baselines: the plain ways to search and to attend, never to be improved.

Stored runs are compared by their ratio to these, so a change here makes all stored runs worthless. A bug may be fixed,
under a new name.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from graphgps_kmip.search import SearchProblem

Found = tuple[Tensor, Tensor]  # index and score, (H, N, K)

GROUP = 8  # keys a group
FEW_KEYS = 2000  # below, plain topk is faster than group maxima (kernel study: loses at 10^3, wins at 3e3)
# Rows a chunk by number of keys, from the kernel study; elsewhere as many rows as hold this many scores.
CHUNKS = ((5_000, None), (15_000, 256), (50_000, 128), (200_000, 32))
CHUNK_SCORES = 3_200_000
CUDA_CHUNK_SCORES = 2**27  # a small chunk cannot fill a GPU


def matmul_topk(problem: SearchProblem) -> Found:
    """All scores at once, then topk; graphs are padded to the longest one."""
    queries, _ = _padded_rows(problem.ptr_q)
    keys, is_key = _padded_rows(problem.ptr_k)
    score = problem.q[:, queries] @ problem.k[:, keys].mT  # (H, B, n, m)
    if not is_key.all():
        score = score.masked_fill(~is_key[:, None], -torch.inf)
    score, local = score.topk(min(problem.num_keys, score.size(-1)))
    found = torch.where(score > -torch.inf, local + problem.ptr_k[:-1, None, None], -1)
    real = _padded_rows(problem.ptr_q)[1]
    index, best = empty(problem)
    index[..., : found.size(-1)], best[..., : found.size(-1)] = found[:, real], score[:, real]
    return index, best


def chunked_frozen(problem: SearchProblem) -> Found:
    """Row chunks of scores, then top-k by group maxima: the K groups of largest maxima hold the K largest scores."""
    return by_block(problem, _search_chunks)


def gather_attention(q: Tensor, k: Tensor, v: Tensor, index: Tensor) -> Tensor:
    """Algorithm 1 of the thesis as it stands, differentiated by autograd: gather, softmax, weighted sum.

    Shapes:
        q, k, v (N, H, D), index (H, N, K), -1: missing; returns (N, H, D).
    """
    head = torch.arange(q.size(1), device=q.device)[:, None, None]
    rows = index.clamp(min=0)
    score = torch.einsum("nhd,hnkd->hnk", q, k[rows, head]) / math.sqrt(q.size(-1))
    weight = score.masked_fill(index < 0, -torch.inf).softmax(-1)
    return torch.einsum("hnk,hnkd->nhd", weight, v[rows, head])


def by_block(problem: SearchProblem, search: Callable[[Tensor, Tensor, int], Found]) -> Found:
    """Search block by block: all graphs and heads at once where all graphs are of one size, else graph by graph.

    Args:
        problem: what to search.
        search: q (b, n, D), k (b, m, D), K <= m -> position among the m keys and score, (b, n, K).
    """
    sizes_q, sizes_k = problem.ptr_q.diff().tolist(), problem.ptr_k.diff().tolist()
    if len(set(sizes_q)) == len(set(sizes_k)) == 1:
        blocks = [(0, problem.q.size(1), 0, problem.k.size(1), len(sizes_q))]
    else:
        bounds = zip(problem.bounds_q, problem.bounds_q[1:], problem.bounds_k, problem.bounds_k[1:], strict=False)
        blocks = [(*bound, 1) for bound in bounds if bound[0] < bound[1] and bound[2] < bound[3]]
    index, best = empty(problem)
    for start_q, end_q, start_k, end_k, graphs in blocks:
        q, k = (
            rows.unflatten(1, (graphs, -1)).flatten(0, 1)  # (H * graphs, n, D)
            for rows in (problem.q[:, start_q:end_q], problem.k[:, start_k:end_k])
        )
        local, score = search(q, k, min(problem.num_keys, k.size(1)))
        first = start_k + torch.arange(graphs, device=q.device) * k.size(1)
        local = local.unflatten(0, (-1, graphs)) + first[:, None, None]  # (H, graphs, n, K)
        index[:, start_q:end_q, : local.size(-1)] = local.flatten(1, 2)
        best[:, start_q:end_q, : local.size(-1)] = score.unflatten(0, (-1, graphs)).flatten(1, 2)
    return index, best


def empty(problem: SearchProblem) -> Found:
    """Return the answer without any key: index -1, score -inf."""
    shape = (*problem.q.shape[:2], problem.num_keys)
    return problem.ptr_q.new_full(shape, -1), problem.q.new_full(shape, -torch.inf)


def _search_chunks(q: Tensor, k: Tensor, num_keys: int) -> Found:
    rows = max(1, _chunk_rows(k.size(1), q.device.type) // q.size(0))
    shape = (*q.shape[:2], num_keys)
    # made beforehand: thousands of small results between freed chunks would keep gigabytes from being used again
    index, best = torch.empty(shape, dtype=torch.int64, device=q.device), q.new_empty(shape)
    for start in range(0, q.size(1), rows):
        part = slice(start, start + rows)
        best[:, part], index[:, part] = _largest(q[:, part] @ k.mT, num_keys)
    return index, best


def _chunk_rows(num_keys: int, device: str) -> int:
    if device == "cuda":
        return CUDA_CHUNK_SCORES // num_keys
    rows = next((rows for most, rows in CHUNKS if num_keys <= most), None)
    return rows or max(1, CHUNK_SCORES // num_keys)


def _largest(score: Tensor, num_keys: int) -> Found:
    """``score.topk(num_keys)`` by maxima of strided groups; what is left over by the groups competes one by one."""
    num_groups = score.size(-1) // GROUP
    if score.size(-1) < FEW_KEYS or num_groups < num_keys:
        return score.topk(num_keys)
    grouped = score[..., : GROUP * num_groups].unflatten(-1, (GROUP, num_groups))
    groups = grouped.amax(-2).topk(num_keys, sorted=False).indices  # (.., K)
    members = (groups[..., None, :] + torch.arange(GROUP, device=score.device)[:, None] * num_groups).flatten(-2)
    rest = torch.arange(GROUP * num_groups, score.size(-1), device=score.device)
    members = torch.cat([members, rest.expand(*members.shape[:-1], -1)], -1)
    best, at = score.gather(-1, members).topk(num_keys)
    return best, members.gather(-1, at)


def _padded_rows(ptr: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of each graph (B, longest), the last row of all where there is none, and which are real."""
    rows = ptr[:-1, None] + torch.arange(int(ptr.diff().max()), device=ptr.device)
    return rows.clamp(max=int(ptr[-1]) - 1), rows < ptr[1:, None]
