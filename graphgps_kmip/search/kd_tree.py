"""k-d tree search for few dimensions: exact pruning by boxes over the keys, in the fused C kernel of fused_cpu.py.

The widest side is split at its median down to panels of 48 keys; in a box with centre c and half side lengths e no
score exceeds ``sum_i q_i c_i + |q_i| e_i``. Queries are sorted by direction, so that eight of them descend together,
and start from thresholds that the keys of their neighbours reach. docs/exact-search.md compares it with the thesis'
ball tree.
"""

from __future__ import annotations

from torch import Tensor

from graphgps_kmip.search.fused_cpu import scan
from graphgps_kmip.search.problem import SearchProblem

# Measured at 10^5 keys (docs/benchmarks.md): above LARGEST_DIM nearly all boxes are opened; below FEWEST_KEYS the build
# costs more than it saves; if less than CROWD of the keys are within NEAR of the
# largest norm, norm order prunes as much.
LARGEST_DIM, FEWEST_KEYS, NEAR, CROWD = 5, 8_192, 0.8, 0.012


def search_tree(problem: SearchProblem) -> tuple[Tensor, Tensor]:
    """Find the K largest inner products for each query; graphs of less than 1,024 keys are searched as by ``cpu``.

    Time: O(N log N) to build, cold, in each call; then the fraction of pairs that ``scan(problem, "tree")`` reports.
    Holds the keys three times, and one copy of the queries.

    Shapes:
        returns index (H, N, K) int64 (-1: missing) and score (H, N, K) (-inf: missing).
    """
    return scan(problem, order="tree")[:2]


def tree_not_preferred_reasons(problem: SearchProblem) -> list[str]:
    """Return the reasons why a scan is faster; an empty list for few dimensions, many keys, and similar norms."""
    reasons = []
    if problem.q.size(-1) > LARGEST_DIM:
        reasons.append(f"pays up to {LARGEST_DIM} dimensions a head, not for {problem.q.size(-1)}")
    largest = max((end - start for start, end in zip(problem.bounds_k, problem.bounds_k[1:], strict=False)), default=0)
    if largest < FEWEST_KEYS:
        reasons.append(f"pays from {FEWEST_KEYS} keys in a graph, not for {largest}")
    if not reasons:
        norms = problem.k.norm(dim=-1)
        crowd = float((norms > NEAR * norms.max()).float().mean())
        if crowd < CROWD:
            reasons.append(f"only {crowd:.1%} of the keys are about as large as the largest: norm order prunes as much")
    return reasons
