"""Welch interval: difference of two means, from mean, standard deviation and number of runs of each side.

B. L. Welch, "The generalization of Student's problem when several different population variances are involved",
Biometrika 34 (1947): unlike Student's, it does not assume equal spreads of the two sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import scipy


class Side(Protocol):
    """What is known of one side; None: not known."""

    mean: float | None
    std: float | None
    n: int | None


@dataclass(frozen=True)
class Difference:
    """A difference of two means.

    Args:
        value: first mean - second mean.
        low: of the interval; None where there is none.
        high: likewise.
        df: degrees of freedom; None without an interval.
        reason: why there is no interval, else empty.
    """

    value: float
    low: float | None = None
    high: float | None = None
    df: float | None = None
    reason: str = ""


def welch(ours: Side, paper: Side, level: float = 0.95) -> Difference:
    r"""Return ours - paper with the interval that holds the true difference with probability `level`.

    .. math:: d \pm t_{df} \sqrt{v_1 + v_2}, \quad df = (v_1 + v_2)^2 / (v_1^2 / (n_1 - 1) + v_2^2 / (n_2 - 1)),
        \quad v_i = s_i^2 / n_i

    Args:
        ours: its `std` is the sample standard deviation.
        paper: likewise, as far as the paper says.
        level: between 0 and 1.
    """
    value = ours.mean - paper.mean
    reason = _reason("ours", ours) or _reason("the paper", paper)
    if reason:
        return Difference(value, reason=reason)
    first, second = ours.std**2 / ours.n, paper.std**2 / paper.n
    if first + second == 0:
        return Difference(value, reason="no spread on either side")
    df = (first + second) ** 2 / (first**2 / (ours.n - 1) + second**2 / (paper.n - 1))
    margin = float(scipy.stats.t.ppf((1 + level) / 2, df)) * math.sqrt(first + second)
    return Difference(value, value - margin, value + margin, df)


def _reason(name: str, side: Side) -> str:
    if side.n is None:
        return f"{name}: number of runs not known"
    if side.n < 2:
        return f"{name}: one run"
    if side.std is None:
        return f"{name}: no standard deviation"
    return "" if math.isfinite(side.mean) and math.isfinite(side.std) else f"{name}: not a number"
