"""Power laws fitted to measurements: exponent of the size, with its confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import linregress, t


class PowerLaw(NamedTuple):
    """``y = factor * x ** exponent``; low and high are the ends of the confidence interval of the exponent."""

    exponent: float
    low: float
    high: float
    factor: float


def power_law(x: Sequence[float], y: Sequence[float], confidence: float = 0.95) -> PowerLaw:
    """Fit by least squares of logarithms.

    Args:
        x (Sequence[float]): sizes, positive, at least two different ones.
        y (Sequence[float]): measurements, positive.
        confidence (float, optional): that the interval holds the exponent, if errors are independent. (default: 0.95)

    Raises:
        ValueError: fewer than three points.
    """
    if len(x) < 3:
        raise ValueError(f"a power law needs three sizes or more, got {len(x)}: measure more sizes")
    fit = linregress(np.log(x), np.log(y))
    half = t.ppf(0.5 + confidence / 2, len(x) - 2) * fit.stderr
    return PowerLaw(*(float(one) for one in (fit.slope, fit.slope - half, fit.slope + half, np.exp(fit.intercept))))
