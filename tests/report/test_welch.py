"""The Welch interval against scipy's, against numbers by hand, and where there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from graphgps_kmip.experiments.printed_tables import PrintedCell
from graphgps_kmip.report.result_table import Ours
from graphgps_kmip.report.welch import welch


def side(mean: float | None, std: float | None, n: int | None) -> PrintedCell:
    return PrintedCell("as printed", mean, std, n)


def test_interval_and_degrees_of_freedom_are_those_that_scipy_finds_from_the_values() -> None:
    ours, paper = Ours(tuple(75 + np.random.default_rng(0).normal(size=5)), wanted=5), [74.1, 74.9, 75.3, 74.4]
    expected = stats.ttest_ind(ours.values, paper, equal_var=False)
    found = welch(ours, side(np.mean(paper), np.std(paper, ddof=1), 4))
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert found.df == pytest.approx(expected.df)
    assert found.value == pytest.approx(np.mean(ours.values) - np.mean(paper))
    assert not found.reason


def test_at_one_minus_its_p_value_the_interval_touches_zero() -> None:
    p = stats.ttest_ind_from_stats(75.6, 0.34, 5, 75.2, 0.81, 4, equal_var=False).pvalue
    found = welch(side(75.6, 0.34, 5), side(75.2, 0.81, 4), level=1 - p)
    assert found.low == pytest.approx(0, abs=1e-9)
    assert found.high == pytest.approx(0.8)


def test_equal_spreads_and_counts_give_the_interval_by_hand_and_its_mirror_image() -> None:
    # Standard error sqrt(1/2 + 1/2) = 1, 2 degrees of freedom, whose 97.5 % quantile is 4.30265.
    found, mirrored = welch(side(3, 1, 2), side(2, 1, 2)), welch(side(2, 1, 2), side(3, 1, 2))
    assert (found.value, found.df) == (1, pytest.approx(2))
    assert (found.low, found.high) == pytest.approx((1 - 4.30265, 1 + 4.30265), abs=1e-5)
    assert (mirrored.low, mirrored.high) == pytest.approx((-found.high, -found.low))


def test_a_side_without_spread_leaves_the_degrees_of_freedom_to_the_other() -> None:
    found = welch(side(2, 0, 7), side(1, 3, 9))  # standard error 1
    assert found.df == pytest.approx(8)
    assert found.high == pytest.approx(1 + stats.t.ppf(0.975, 8))


@pytest.mark.parametrize(
    ("ours", "paper", "reason"),
    [
        (side(2, None, 1), side(1, 0.5, 4), "ours: one run"),
        (side(2, 0.5, 4), side(1, None, 4), "the paper: no standard deviation"),
        (side(2, 0.5, 4), side(1, 0.5, 1), "the paper: one run"),
        (side(2, 0.5, 4), side(1, 0.5, None), "the paper: number of runs not known"),
        (side(2, 0, 4), side(1, 0, 4), "no spread on either side"),
        (side(2, math.nan, 4), side(1, 0.5, 4), "ours: not a number"),
    ],
)
def test_without_what_it_needs_there_is_a_difference_and_a_reason_but_no_interval(
    ours: PrintedCell, paper: PrintedCell, reason: str
) -> None:
    found = welch(ours, paper)
    assert (found.value, found.low, found.high, found.df, found.reason) == (1, None, None, None, reason)
