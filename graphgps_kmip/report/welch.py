"""Welch interval of a difference of two means, and tests paired by run: mean ranks, Wilcoxon, bootstrap, Holm.

Welch, Biometrika 34 (1947). Ranks and Wilcoxon's signed-rank test: Demšar, JMLR 7 (2006). Holm, "A simple sequentially
rejective multiple test procedure" (1979).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import scipy

LEVEL = 0.95
Scores = Mapping[str, Sequence[float]]  # row -> values of the same runs in the same order


class Side(Protocol):
    """Mean, sample standard deviation and number of runs of one side; None: not known."""

    mean: float | None
    std: float | None
    n: int | None


class Difference(NamedTuple):
    """First mean - second mean, its interval and degrees of freedom, or the reason why there is no interval."""

    value: float
    low: float | None = None
    high: float | None = None
    df: float | None = None
    reason: str = ""


def welch(ours: Side, paper: Side, level: float = LEVEL) -> Difference:
    r"""Return ours - paper with the interval that holds the true difference with probability `level`.

    .. math:: d \pm t_{df} \sqrt{v_1 + v_2}, \quad df = (v_1 + v_2)^2 / (v_1^2 / (n_1 - 1) + v_2^2 / (n_2 - 1)),
        \quad v_i = s_i^2 / n_i
    """
    value = ours.mean - paper.mean
    for name, side in (("ours", ours), ("the paper", paper)):
        reasons = {
            "number of runs not known": side.n is None,
            "one run": side.n is not None and side.n < 2,
            "no standard deviation": side.std is None,
            "not a number": not (math.isfinite(side.mean) and math.isfinite(side.std or 0)),
        }
        if reason := next((reason for reason, holds in reasons.items() if holds), ""):
            return Difference(value, reason=f"{name}: {reason}")
    first, second = ours.std**2 / ours.n, paper.std**2 / paper.n
    if first + second == 0:
        return Difference(value, reason="no spread on either side")
    df = (first + second) ** 2 / (first**2 / (ours.n - 1) + second**2 / (paper.n - 1))
    margin = float(scipy.stats.t.ppf((1 + level) / 2, df)) * math.sqrt(first + second)
    return Difference(value, value - margin, value + margin, df)


def mean_ranks(scores: Scores, better: str) -> dict[str, float]:
    """Return row -> rank, 1 the best, averaged over runs; equal scores share the mean of their ranks."""
    sign = -1 if better == "higher" else 1
    ranks = scipy.stats.rankdata([sign * np.asarray(values) for values in scores.values()], axis=0)
    return dict(zip(scores, ranks.mean(axis=1).tolist(), strict=True))


class Versus(NamedTuple):
    """Mean of best - this row (positive: the best is better), its bootstrap interval, and Wilcoxon's p after Holm."""

    difference: float
    low: float
    high: float
    p: float


def against_best(scores: Scores, better: str) -> tuple[str, dict[str, Versus]]:
    """Return the row of the best mean, and how each other one compares with it, over the same runs in order."""
    sign = 1 if better == "higher" else -1
    best = max(scores, key=lambda row: sign * float(np.mean(scores[row])))
    others = {}
    for row in (row for row in scores if row != best):
        gap = sign * (np.asarray(scores[best]) - np.asarray(scores[row]))
        if np.all(gap == gap[0]):  # no spread to draw from
            others[row] = Versus(*[float(gap[0])] * 3, 1.0 if gap[0] == 0 else smallest_p(len(gap)))
            continue
        low, high = scipy.stats.bootstrap(
            (gap,), np.mean, confidence_level=LEVEL, n_resamples=9999, method="percentile", random_state=0
        ).confidence_interval
        # All signs are tried, up to 13 runs: the usual tables and approximations do not hold for ties, which scores of
        # few test nodes have. Rounding makes equal gaps equal.
        p = scipy.stats.wilcoxon(gap.round(9), method=scipy.stats.PermutationMethod(rng=0)).pvalue
        others[row] = Versus(float(gap.mean()), float(low), float(high), float(p))
    corrected = holm({row: versus.p for row, versus in others.items()})
    return best, {row: versus._replace(p=corrected[row]) for row, versus in others.items()}


def smallest_p(runs: int) -> float:
    """Return the smallest p that a two-sided Wilcoxon test of this number of pairs can have."""
    return 2.0 ** (1 - runs)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p values corrected for their number by Holm's step-down procedure."""
    corrected, largest = {}, 0.0
    for place, row in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, p_values[row] * (len(p_values) - place)))
        corrected[row] = largest
    return corrected
