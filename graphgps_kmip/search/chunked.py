"""Search in plain torch: `search_chunked` with bounded memory on any device, `search_exact` as reference.

Graphs of similar size are padded into one block, whose queries are searched in chunks that fit the memory bound.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from graphgps_kmip.ops.host_copies import on_device
from graphgps_kmip.search.problem import SearchProblem

# Scores that take about as long as starting one more block (0.2 ms at 5 ns a score): less padding is cheaper.
BLOCK_OVERHEAD = 40_000
# Keys per group, and the minimum number of groups for which group maxima beat a plain top-k.
GROUP, MIN_GROUPS = 8, 60


def search_chunked(problem: SearchProblem, memory_mib: float = 32) -> tuple[Tensor, Tensor]:
    """Find the K largest inner products for each query, block by block.

    ``memory_mib`` bounds the scores at a time. Returns index (H, N, K) int64, -1: missing, and score, -inf: missing.
    """
    max_scores = int(memory_mib * 2**20) // (problem.q.element_size() * problem.num_heads)
    shape = (problem.num_heads, problem.q.size(1) + 1, problem.num_keys)  # the last row receives padding
    index = torch.full(shape, -1, dtype=torch.int64, device=problem.q.device)
    score = torch.full(shape, -torch.inf, dtype=problem.q.dtype, device=problem.q.device)
    for graphs in blocks(problem, max_scores):
        _search_block(problem, graphs, max_scores, index, score)
    index, score = index[:, :-1], score[:, :-1]
    return index.masked_fill_(problem.missing, -1), score


def blocks(problem: SearchProblem, max_scores: int) -> list[list[int]]:
    """Group the graphs into blocks of similar size, each of one graph or at most ``max_scores`` scores a head."""
    sizes_q, sizes_k = ([b - a for a, b in pairwise(bounds)] for bounds in (problem.bounds_q, problem.bounds_k))
    order = [graph for graph in range(problem.num_graphs) if sizes_q[graph] and sizes_k[graph]]
    result: list[list[int]] = []
    rows = columns = filled = 0
    for graph in sorted(order, key=lambda graph: (sizes_k[graph], sizes_q[graph]), reverse=True):
        area = sizes_q[graph] * sizes_k[graph]
        joined_rows = max(rows, sizes_q[graph])
        joined_area = joined_rows * columns * (len(result[-1]) + 1) if result else 0
        padding = joined_area - filled - area
        if result and joined_area <= max_scores and padding * problem.num_heads <= BLOCK_OVERHEAD:
            result[-1].append(graph)
            rows, filled = joined_rows, filled + area
        else:
            result.append([graph])
            rows, columns, filled = sizes_q[graph], sizes_k[graph], area
    return result


def _search_block(problem: SearchProblem, graphs: list[int], max_scores: int, index: Tensor, score: Tensor) -> None:
    queries, _ = _padded_rows(problem.ptr_q, problem.bounds_q, graphs)  # (b, n)
    keys, shortest = _padded_rows(problem.ptr_k, problem.bounds_k, graphs)  # (b, m)
    padding = keys[:, None, shortest:] == problem.k.size(1)
    k = problem.k[:, keys.clamp(max=problem.k.size(1) - 1)].mT  # (H, b, D, m)
    num_keys = min(problem.num_keys, keys.size(1))
    for rows in queries.split(max(1, max_scores // keys.numel()), dim=1):
        block = problem.q[:, rows.clamp(max=problem.q.size(1) - 1)] @ k  # (H, b, n, m)
        block[..., shortest:].masked_fill_(padding, -torch.inf)
        score[:, rows, :num_keys], local = _largest(block, num_keys)
        index[:, rows, :num_keys] = local + keys[:, :1, None]  # the keys of a graph are consecutive


def _largest(score: Tensor, num_keys: int) -> tuple[Tensor, Tensor]:
    """``score.topk(num_keys)`` by group maxima: the K groups with the largest maxima contain the K largest scores."""
    num_groups, rest = divmod(score.size(-1), GROUP)
    if rest or num_groups < max(MIN_GROUPS, num_keys):
        return score.topk(num_keys)
    groups = score.unflatten(-1, (GROUP, num_groups)).amax(-2).topk(num_keys, sorted=False).indices  # (..., K)
    offset = torch.arange(GROUP, device=score.device)[:, None] * num_groups
    members = (groups[..., None, :] + offset).flatten(-2)  # (..., GROUP * K)
    top, at = score.gather(-1, members).topk(num_keys)
    return top, members.gather(-1, at)


def _padded_rows(ptr: Tensor, bounds: list[int], graphs: list[int]) -> tuple[Tensor, int]:
    sizes = [bounds[graph + 1] - bounds[graph] for graph in graphs]
    longest = max(sizes)
    if longest >= GROUP * MIN_GROUPS:
        longest += -longest % GROUP  # so that the keys split into groups
    at = on_device(graphs, ptr.device)
    rows = ptr[at, None] + torch.arange(longest, device=ptr.device)
    return torch.where(rows < ptr[at + 1, None], rows, bounds[-1]), min(sizes)


def search_exact(problem: SearchProblem) -> tuple[Tensor, Tensor]:
    """Search as `search_chunked`, by the whole matrix (H, N, M) of ``<q_n, k_m>``."""
    graph_q, graph_k = (
        torch.arange(problem.num_graphs, device=ptr.device).repeat_interleave(ptr.diff())
        for ptr in (problem.ptr_q, problem.ptr_k)
    )
    score = problem.q @ problem.k.mT  # (H, N, M)
    score = score.masked_fill(graph_q[:, None] != graph_k, -torch.inf)
    short = max(0, problem.num_keys - score.size(-1))
    score, index = pad(score, (0, short), value=-torch.inf).topk(problem.num_keys)
    return index.masked_fill(problem.missing, -1), score
