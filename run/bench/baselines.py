"""Baselines of the attention benchmark: the plain ways to search and to attend, as the papers have them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from graphgps_kmip.search import SearchProblem

Found = tuple[Tensor, Tensor]  # index and score, (H, N, K)


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


def _padded_rows(ptr: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of each graph (B, longest), the last row of all where there is none, and which are real."""
    rows = ptr[:-1, None] + torch.arange(int(ptr.diff().max()), device=ptr.device)
    return rows.clamp(max=int(ptr[-1]) - 1), rows < ptr[1:, None]
