"""Exact ranking metrics of one column of scores: area under the ROC curve and average precision.

Written here because torchmetrics passes logits through a float32 sigmoid, which ties confident scores, and counts a
class without positives as an area of 0. Two sorts and a merge also make it several times faster.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor


def _sorted_parts(score: Tensor, true: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of the positives and those of the negatives, each in rising order."""
    score, true = score.cpu().numpy(), true.bool().cpu().numpy()
    return np.sort(score[true]), np.sort(score[~true])


def area_under_roc(score: Tensor, true: Tensor) -> float:
    """Return the probability that a positive is scored above a negative, ties counting a half.

    Args:
        score: any real numbers.
        true: 0 or 1.

    Shapes: score `(N,)`, true `(N,)`; nan if positives or negatives are absent. O(N log N).
    """
    positive, negative = _sorted_parts(score, true)
    if not (len(positive) and len(negative)):
        return float("nan")
    below = np.searchsorted(negative, positive, "left").sum() + np.searchsorted(negative, positive, "right").sum()
    return float(below / 2 / (len(positive) * len(negative)))


def average_precision(score: Tensor, true: Tensor) -> float:
    """Return the mean over the positives of the precision among all rows scored as high or higher.

    Args:
        score: any real numbers.
        true: 0 or 1.

    Shapes: score `(N,)`, true `(N,)`; nan if positives or negatives are absent: ogb leaves out such
    a label. O(N log N).
    """
    positive, negative = _sorted_parts(score, true)
    if not (len(positive) and len(negative)):
        return float("nan")
    hits = len(positive) - np.searchsorted(positive, positive, "left")
    misses = len(negative) - np.searchsorted(negative, positive, "left")
    return float((hits / (hits + misses)).mean())
