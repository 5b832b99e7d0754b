"""Metrics of one real target."""

from __future__ import annotations

import warnings

from scipy.stats import ConstantInputWarning, spearmanr
from torch import Tensor
from torchmetrics.functional.regression import mean_squared_error


def root_mean_squared_error(score: Tensor, true: Tensor) -> Tensor:
    """Return the root of the mean squared error."""
    return mean_squared_error(score, true, squared=False)


def r2(score: Tensor, true: Tensor) -> float:
    """Share of the variance explained; a constant target gives 1 if it is met exactly, else 0; nan below two rows.

    Written here because torchmetrics calls a residual below 1e-4 a perfect fit, whatever the unit.

    Args:
        score: predictions.
        true: targets.

    Shapes: `(N,)` each.
    """
    if len(true) < 2:
        return float("nan")
    residual, spread = (true - score).square().sum(), (true - true.mean()).square().sum()
    if spread == 0:
        return float(residual == 0)
    return float(1 - residual / spread)


def spearman(score: Tensor, true: Tensor) -> float:
    """Return Spearman's correlation of ranks; nan for a constant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantInputWarning)  # a constant has no rank order: nan says it
        return float(spearmanr(true.cpu().numpy(), score.cpu().numpy()).statistic)
