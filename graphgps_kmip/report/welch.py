"""Welch interval of a difference of two means; corrected resampled t over splits that overlap; Holm's correction.

Welch, Biometrika 34 (1947). Nadeau and Bengio, "Inference for the generalization error", Machine Learning 52 (2003).
Holm, "A simple sequentially rejective multiple test procedure" (1979).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import scipy

LEVEL = 0.95
UNKNOWN_SIZES = "sizes of the splits not known"
Key = TypeVar("Key", bound=Hashable)


class Side(Protocol):
    """Mean, sample standard deviation and number of runs of one side; None: not known."""

    mean: float | None
    std: float | None
    n: int | None


class Runs(Side, Protocol):
    """Runs of one row: a value for each seed, and how far their splits overlap."""

    values: Sequence[float]
    seeds: Sequence[int]
    overlap: float | None  # n_test / n_train where each seed has a split of its own, 0 on one split, None: not known


class Difference(NamedTuple):
    """First mean - second mean, its interval, degrees of freedom and two-sided p, or why there is no interval."""

    value: float
    low: float | None = None
    high: float | None = None
    df: float | None = None
    reason: str = ""
    p: float | None = None


def welch(ours: Side, paper: Side, overlap: float | None = 0.0) -> Difference:
    r"""Return ours - paper with the interval that holds the true difference with probability `LEVEL`.

    .. math:: d \pm t_{df} \sqrt{v_1 + v_2}, \quad df = (v_1 + v_2)^2 / (v_1^2 / (n_1 - 1) + v_2^2 / (n_2 - 1)),
        \quad v_i = (1 / n_i + r) s_i^2

    Args:
        ours (Side): First side.
        paper (Side): Second side.
        overlap (float, optional): r, n_test / n_train where both spreads are over random splits of one data set, by
            Nadeau and Bengio's correction of the variance of a mean; None: not known. (default: ``0.0``)
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
    if overlap is None:
        return Difference(value, reason=UNKNOWN_SIZES)
    first, second = ((1 / side.n + overlap) * side.std**2 for side in (ours, paper))
    if first + second == 0:
        return Difference(value, reason="no spread on either side")
    df = (first + second) ** 2 / (first**2 / (ours.n - 1) + second**2 / (paper.n - 1))
    return _t_interval(value, first + second, df)


def corrected_t(differences: Sequence[float], overlap: float | None) -> Difference:
    r"""Return the mean of differences over splits, with the interval of the corrected resampled t.

    The J splits of one data set share nodes, so that the variance of the mean is more than var / J:

    .. math:: t = \bar d / \sqrt{(1 / J + n_{test} / n_{train}) \, var(d)}, \quad df = J - 1

    Args:
        differences (sequence of float): d, one for each of J >= 2 splits.
        overlap (float): n_test / n_train; 0 is the plain paired t; None: not known.
    """
    value, count = float(np.mean(differences)), len(differences)
    if overlap is None:
        return Difference(value, reason=UNKNOWN_SIZES)
    variance = (1 / count + overlap) * float(np.var(differences, ddof=1))
    # differences that are equal but for rounding have no spread either
    if math.sqrt(variance) <= 1e-12 * abs(value):
        return Difference(value, reason="no spread over the splits")
    return _t_interval(value, variance, count - 1)


def _t_interval(value: float, variance: float, df: float) -> Difference:
    error = math.sqrt(variance)
    margin = float(scipy.special.stdtrit(df, (1 + LEVEL) / 2)) * error
    p = 2 * float(scipy.special.stdtr(df, -abs(value) / error))
    return Difference(value, value - margin, value + margin, df, p=p)


def compare_runs(first: Runs, second: Runs) -> Difference:
    """Return first - second: Welch's on one split; over splits by the corrected resampled t, of those both have."""
    if first.overlap == 0:
        return welch(first, second)
    others = dict(zip(second.seeds, second.values, strict=True))
    pairs = [(value, others[seed]) for seed, value in zip(first.seeds, first.values, strict=True) if seed in others]
    if len(pairs) < 2:
        return Difference(first.mean - second.mean, reason="no two splits that both have")
    return corrected_t(np.subtract(*zip(*pairs, strict=True)), first.overlap)


def difference_text(difference: Difference, decimals: int | None = None) -> str:
    """Return ``+0.11 [-0.30, +0.52]``, or ``+0.11 [-]`` without an interval; default: two digits of its half width."""
    if decimals is None:
        spread = abs(difference.value if difference.low is None else difference.high - difference.low) / 2
        decimals = min(max(1 - math.floor(math.log10(spread)), 0), 6) if spread else 2
    value, *interval = (f"{bound:+z.{decimals}f}" for bound in difference[:3] if bound is not None)
    return f"{value} [{', '.join(interval) or '-'}]"


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Return p values corrected for their number by Holm's step-down procedure."""
    corrected, largest = {}, 0.0
    for place, row in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, p_values[row] * (len(p_values) - place)))
        corrected[row] = largest
    return corrected
