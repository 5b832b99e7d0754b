"""The readable reference: the full score matrix, masked to the query's graph, then top-k."""

from __future__ import annotations

import torch
from torch import Tensor

from graphgps_kmip.search.problem import SearchProblem


def search_exact(problem: SearchProblem) -> tuple[Tensor, Tensor]:
    """Find the K largest of ``score[n, m] = <q_n, k_m>`` over the keys m of the graph of n.

    Holds the whole (H, N, M) matrix. Ties are taken in the order of ``torch.topk``.

    Shapes:
        returns index (H, N, K) int64 (-1: missing) and score (H, N, K) (-inf: missing).
    """
    graph_q, graph_k = (
        torch.arange(problem.num_graphs, device=ptr.device).repeat_interleave(ptr.diff())
        for ptr in (problem.ptr_q, problem.ptr_k)
    )
    score = problem.q @ problem.k.mT  # (H, N, M)
    score = score.masked_fill(graph_q[:, None] != graph_k, -torch.inf)
    short = max(0, problem.num_keys - score.size(-1))
    score, index = torch.nn.functional.pad(score, (0, short), value=-torch.inf).topk(problem.num_keys)
    return index.masked_fill(problem.missing, -1), score
