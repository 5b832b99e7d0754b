"""Welch's interval, the corrected resampled t over splits, and Holm's correction."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from graphgps_kmip.experiments.manifest import PrintedCell
from graphgps_kmip.report.result_table import Ours
from graphgps_kmip.report.welch import Difference, compare_runs, corrected_t, difference_text, holm, welch

GCN, GAT = (80.0, 81.0, 82.0, 80.5, 81.5), (79.0, 80.5, 82.0, 80.0, 79.0)


def runs(values: tuple[float, ...], seeds: tuple[int, ...] | None = None, overlap: float | None = 0.0) -> Ours:
    return Ours(values, seeds or tuple(range(len(values))), len(values), overlap=overlap)


def side(mean: float | None, std: float | None, n: int | None) -> PrintedCell:
    return PrintedCell("as printed", mean, std, n)


def test_interval_p_and_degrees_of_freedom_are_those_that_scipy_finds_from_the_values() -> None:
    our_side, paper = runs(tuple(75 + np.random.default_rng(0).normal(size=5))), [74.1, 74.9, 75.3, 74.4]
    expected = stats.ttest_ind(our_side.values, paper, equal_var=False)
    difference = welch(our_side, side(np.mean(paper), np.std(paper, ddof=1), 4))
    assert (difference.low, difference.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert (difference.df, difference.p) == pytest.approx((expected.df, expected.pvalue))
    assert difference.value == pytest.approx(np.mean(our_side.values) - np.mean(paper))
    assert not difference.reason


def test_the_interval_of_five_against_five_runs_holds_the_difference_in_95_of_100_draws() -> None:
    draws = np.random.default_rng(0).normal(size=(4000, 2, 5)) * [[1.0], [2.0]] + [[70.0], [69.0]]
    sides = zip(draws.mean(axis=2), draws.std(axis=2, ddof=1), strict=True)
    intervals = [welch(*(side(mean, std, 5) for mean, std in zip(*both, strict=True))) for both in sides]
    assert 0.93 < np.mean([interval.low < 1 < interval.high for interval in intervals]) < 0.97


def test_runs_over_splits_have_the_corrected_resampled_t() -> None:
    gaps = np.subtract(GCN, GAT)
    difference = corrected_t(gaps, 0.5)
    mean = math.fsum(gaps) / 5
    variance = math.fsum((gap - mean) ** 2 for gap in gaps) / 4
    t = mean / math.sqrt((1 / 5 + 2500 / 5000) * variance)
    assert difference.p == pytest.approx(2 * stats.t.sf(t, 4))
    margin = stats.t.ppf(0.975, 4) * mean / t
    assert (difference.low, difference.high, difference.df) == pytest.approx((mean - margin, mean + margin, 4))
    plain, paired = corrected_t(gaps, 0), stats.ttest_rel(GCN, GAT)
    assert plain.p == pytest.approx(paired.pvalue)
    assert (plain.low, plain.high) == pytest.approx(tuple(paired.confidence_interval(0.95)))
    assert compare_runs(runs(GCN, overlap=0.5), runs(GAT, overlap=0.5)) == difference
    # of the splits that both have, in whatever order
    short = runs((*GAT[2::-1], 1.0), (2, 1, 0, 9), 0.5)
    assert compare_runs(runs(GCN, overlap=0.5), short) == corrected_t(gaps[:3], 0.5)


def test_runs_of_one_split_are_compared_by_welch_whatever_their_seeds() -> None:
    expected = stats.ttest_ind(GCN, GAT[:3], equal_var=False)
    assert compare_runs(runs(GCN), runs(GAT[:3], (7, 8, 9))).p == pytest.approx(expected.pvalue)


def test_a_printed_spread_over_splits_is_corrected_like_ours() -> None:
    first, second = runs(GCN), side(79.0, 2.0, 10)
    difference = welch(first, second, 0.5)
    ours, paper = (1 / 5 + 0.5) * np.var(GCN, ddof=1), (1 / 10 + 0.5) * 4.0
    df = (ours + paper) ** 2 / (ours**2 / 4 + paper**2 / 9)
    assert difference.high - difference.value == pytest.approx(stats.t.ppf(0.975, df) * math.sqrt(ours + paper))
    assert difference.df == pytest.approx(df)


@pytest.mark.parametrize(
    ("our_side", "paper", "reason"),
    [
        (side(2, None, 1), side(1, 0.5, 4), "ours: one run"),
        (side(2, 0.5, 4), side(1, None, 4), "the paper: no standard deviation"),
        (side(2, 0.5, 4), side(1, 0.5, 1), "the paper: one run"),
        (side(2, 0.5, 4), side(1, 0.5, None), "the paper: number of runs not known"),
        (side(2, 0, 4), side(1, 0, 4), "no spread on either side"),
        (side(2, math.nan, 4), side(1, 0.5, 4), "ours: not a number"),
    ],
)
def test_a_reason_says_why_there_is_no_interval(our_side: PrintedCell, paper: PrintedCell, reason: str) -> None:
    assert welch(our_side, paper) == Difference(1, reason=reason)


def test_there_is_no_interval_over_splits_of_unknown_sizes_without_spread_or_in_common() -> None:
    unknown = runs(GCN, overlap=None), runs(GAT, overlap=None)
    for difference in (compare_runs(*unknown), welch(*unknown, None)):
        assert (difference.reason, difference.low) == ("sizes of the splits not known", None)
    assert corrected_t([0.1 + 0.2, 0.3, 0.3], 0.5).reason == "no spread over the splits"
    assert compare_runs(runs(GCN, overlap=0.5), runs((1.0, 2.0), (8, 9), 0.5)).reason == "no two splits that both have"


def test_holm_multiplies_by_how_many_are_left_and_never_decreases() -> None:
    assert holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx({"b": 0.03, "c": 0.06, "a": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_a_difference_is_written_with_two_digits_of_its_half_width() -> None:
    assert difference_text(Difference(1.234, 1.134, 1.334)) == "+1.23 [+1.13, +1.33]"
    assert difference_text(Difference(-0.00012, -0.0004, 0.00016)) == "-0.00012 [-0.00040, +0.00016]"
    assert difference_text(Difference(12.3, -10.0, 34.6)) == "+12 [-10, +35]"
    assert difference_text(Difference(0.5, reason="one run"), 1) == "+0.5 [-]"
    assert difference_text(Difference(0.0)) == "+0.00 [-]"
