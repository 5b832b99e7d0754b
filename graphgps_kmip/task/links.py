"""Metrics of pairs of nodes: means over given ranks, hits among the negatives of a split."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Name, what is taken of a rank, in words.
OF_RANK: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "hits@1": (lambda rank: rank <= 1, "share of positive pairs of rank 1"),
    "hits@3": (lambda rank: rank <= 3, "share of positive pairs of rank 3 or better"),
    "hits@10": (lambda rank: rank <= 10, "share of positive pairs of rank 10 or better"),
    "mrr": (lambda rank: 1 / rank, "mean reciprocal rank of the positive pairs"),
}
# Suffix of the metric's name, column of the score that holds the rank, in words; see EdgeHead.
CANDIDATES = (
    ("", 2, "among all nodes of the graph"),
    ("_filt", 3, "other positive pairs left out"),
    ("_filt_self", 4, "other positive pairs and the node itself left out"),
)


def mean_over_graphs(column: int, value: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, float], float]:
    """Return the metric: mean over graphs of the mean over their positive pairs of ``value(rank)``.

    Graphs without positive pairs have no rank and are left out (GraphGPS lets them count 0).

    Args:
        column: of the score, where the rank stands; column 1 holds the number of positive pairs in the pair's graph.
        value: what is averaged.

    Shapes: score (L, 5), true (L,) 0 or 1 -> a number, nan without positive pairs.
    """

    def metric(score: Tensor, true: Tensor, _thresh: float) -> float:
        positive = score[true == 1].double()
        weight = 1 / positive[:, 1]  # the positive pairs of a graph weigh 1 together
        return float((weight * value(positive[:, column])).sum() / weight.sum())

    return metric


def hits_above(k: int) -> Callable[[Tensor, Tensor, float], float]:
    """Return ogb's hits@k: share of the positive pairs that score above the k-th best negative pair of the split.

    Shapes: score (L,), true (L,) 0 or 1 -> a number: 1 if there are fewer than k negative pairs, nan without positive.
    """

    def metric(score: Tensor, true: Tensor, _thresh: float) -> float:
        positive, negative = score[true == 1], score[true == 0]
        if not len(positive):
            return float("nan")
        bar = torch.topk(negative, k).values[-1] if len(negative) >= k else score.new_tensor(-torch.inf)
        return float((positive > bar).double().mean())

    return metric
