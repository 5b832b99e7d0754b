"""The Welch interval; ranks, paired tests and bootstrap intervals of a table, and when they are shown."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from graphgps_kmip.experiments.printed_tables import PrintedCell
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable
from graphgps_kmip.report.table_notes import rank_notes, table_notes
from graphgps_kmip.report.welch import Difference, against_best, holm, mean_ranks, smallest_p, welch
from tests.report.example_runs import search_record

SCORES = {
    "GCN": (80.0, 81.0, 82.0, 80.5, 81.5, 83.0),
    "GAT": (79.0, 80.5, 82.0, 80.0, 79.0, 82.9),
    "kMIP": (70.0, 82.0, 72.0, 73.0, 74.0, 71.0),
}


def table(**changes: object) -> ResultTable:
    rows = {
        row: {"Cora score": Cell(Ours(values, tuple(range(len(values))), len(values)))}
        for row, values in SCORES.items()
    }
    columns = {"Cora score": {"metric": "accuracy", "better": "higher", "unit": "%"}}
    settings, searches = dict.fromkeys(SCORES, "ours"), {row: search_record() for row in SCORES}
    return dataclasses.replace(
        ResultTable("fair/x", "X", "fair/x", columns, rows, settings, searches=searches), **changes
    )


def test_ranks_are_means_over_runs_and_equal_scores_share_theirs() -> None:
    assert mean_ranks(SCORES, "higher") == pytest.approx({"GCN": 7.5 / 6, "GAT": 12.5 / 6, "kMIP": 16 / 6})
    assert mean_ranks(SCORES, "lower")["kMIP"] == pytest.approx(8 / 6)


def test_the_test_is_that_of_wilcoxon_over_all_signs_and_the_interval_holds_the_mean() -> None:
    best, others = against_best(SCORES, "higher")
    mean = np.subtract(SCORES["GCN"], SCORES["kMIP"]).mean()
    assert (best, list(others)) == ("GCN", ["GAT", "kMIP"])
    assert others["kMIP"].difference == pytest.approx(mean)
    assert others["kMIP"].low < mean < others["kMIP"].high
    # -1 is the smallest of six differences: rank sums 20, 21, 1 and 0 of 64; the smaller of two p values that are equal
    assert others["kMIP"].p == pytest.approx(2 * 4 / 64)
    assert against_best(SCORES, "lower")[0] == "kMIP"
    # equal runs are no difference, and a constant gap is all that few runs can show
    _, others = against_best({"a": (3.0, 4.0, 5.0), "b": (3.0, 4.0, 5.0), "c": (2.0, 3.0, 4.0)}, "higher")
    assert (others["b"].p, others["c"]) == (1.0, (1.0, 1.0, 1.0, 2 * smallest_p(3)))


def test_holm_multiplies_by_how_many_are_left_and_never_decreases() -> None:
    assert holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx({"b": 0.03, "c": 0.06, "a": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_a_table_of_tuned_models_says_ranks_tests_and_that_few_runs_show_little() -> None:
    text = " ".join(table_notes(table(), partial=False))
    assert "Cora score, mean rank over 6 runs: GCN 1.2, GAT 2.1, kMIP 2.7." in text
    assert "Cora score, GCN minus each, paired by run: mean, 95% bootstrap interval" in text
    few = "6 runs are too few for these tests: the smallest p that they allow, before the correction, is 0.0312."
    assert few in text


def test_models_whose_runs_are_not_complete_are_left_out_and_the_note_says_so() -> None:
    lacking = table().rows | {"GAT": {"Cora score": Cell(Ours(SCORES["GAT"], tuple(range(6)), 7))}}
    text = " ".join(table_notes(table(rows=lacking), partial=True))
    assert "Cora score, the 2 models that are complete, mean rank over 6 runs: GCN 1.2, kMIP 1.8." in text
    assert "GAT" not in text.partition("mean rank")[2]


def test_nothing_is_tested_where_runs_differ_are_no_results_or_are_of_one_model() -> None:
    rows = table().rows
    others = rows | {"GAT": {"Cora score": Cell(Ours(SCORES["GAT"], tuple(range(1, 7)), 6))}}
    single = {row: {"Cora score": Cell(Ours(SCORES[row], tuple(range(6)), 6 + (row != "GCN")))} for row in rows}
    for untested in (table(rows=single), table(rows=others), table(sample=True), table(searches={})):
        assert "mean rank" not in " ".join(table_notes(untested, partial=False))


def test_the_notes_say_trials_cost_choice_and_which_ranges_are_shared() -> None:
    fewer = search_record(ranges={"lr": ["0.1", ["0.1", "0.01"]]}, failed=2, seconds=30.0)
    searches = {"kMIP": search_record(choice={"lr": "0.01", "k": "10"}), "GCN": fewer}
    text = " ".join(table_notes(table(searches=searches), partial=False))
    for part in (
        "tuning: 10 trials each, chosen on validation alone, with seed 100, which no number here is of",
        "all together 20 trials (2 failed) in 1 min 30 s.",
        "ranges of all models: lr 0.1/0.01.",
        "GCN: lr 0.1 (validation accuracy 0.8, best of 10 trials, 2 failed, 30 s).",
        "kMIP: lr 0.01, k 10 (validation accuracy 0.8, best of 10 trials, 1 min; own ranges: k 5/10).",
    ):
        assert part in text
    unequal = table(searches={"GCN": search_record(trials=20), "kMIP": search_record()})
    assert "tuning: NOT EQUAL, trials: GCN 20, kMIP 10," in " ".join(table_notes(unequal, partial=False))


def test_ranks_over_data_sets_are_of_the_models_that_all_of_them_have() -> None:
    def data_set(name: str, better: str, scores: dict[str, tuple[float, ...]], wanted: int = 2) -> ResultTable:
        rows = {row: {f"{name} score": Cell(Ours(of, tuple(range(len(of))), wanted))} for row, of in scores.items()}
        searches = {row: search_record() for row in scores}
        return table(columns={f"{name} score": {"better": better}}, rows=rows, searches=searches)

    cora = data_set("Cora", "higher", {"GCN": (1.0, 5.0), "GAT": (2.0, 2.0), "kMIP": (0.0, 1.0)})
    zinc = data_set("ZINC", "lower", {"kMIP": (0.1, 0.1), "GCN": (0.3, 0.3), "GAT": (0.2, 0.2), "GRIT": (0.0, 0.0)})
    (note,) = rank_notes([cora, zinc])
    assert note.startswith(
        "mean rank over Cora, ZINC, of the models that all of them have: GCN 2.0, GAT 2.0, kMIP 2.0."
    )
    (note,) = rank_notes([cora, dataclasses.replace(zinc, columns={"ZINC score": {"better": "higher"}})])
    assert "GCN 1.0, GAT 2.0, kMIP 3.0." in note
    unfinished = data_set("ZINC", "lower", {"kMIP": (0.1,), "GCN": (0.3,), "GAT": (0.2,)})
    for tables in ([], [cora], [cora, unfinished]):
        assert list(rank_notes(tables)) == [
            "ranks over data sets: at least two models must be complete on two data sets."
        ]


def side(mean: float | None, std: float | None, n: int | None) -> PrintedCell:
    return PrintedCell("as printed", mean, std, n)


def test_interval_and_degrees_of_freedom_are_those_that_scipy_finds_from_the_values() -> None:
    ours, paper = Ours(tuple(75 + np.random.default_rng(0).normal(size=5)), wanted=5), [74.1, 74.9, 75.3, 74.4]
    expected = stats.ttest_ind(ours.values, paper, equal_var=False)
    difference = welch(ours, side(np.mean(paper), np.std(paper, ddof=1), 4))
    assert (difference.low, difference.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert difference.df == pytest.approx(expected.df)
    assert difference.value == pytest.approx(np.mean(ours.values) - np.mean(paper))
    assert not difference.reason


def test_equal_spreads_and_counts_give_the_interval_by_hand_and_its_mirror_image() -> None:
    # Standard error sqrt(1/2 + 1/2) = 1, 2 degrees of freedom, whose 97.5 % quantile is 4.30265.
    difference, mirrored = welch(side(3, 1, 2), side(2, 1, 2)), welch(side(2, 1, 2), side(3, 1, 2))
    assert (difference.value, difference.df) == (1, pytest.approx(2))
    assert (difference.low, difference.high) == pytest.approx((1 - 4.30265, 1 + 4.30265), abs=1e-5)
    assert (mirrored.low, mirrored.high) == pytest.approx((-difference.high, -difference.low))


def test_a_side_without_spread_leaves_the_degrees_of_freedom_to_the_other() -> None:
    difference = welch(side(2, 0, 7), side(1, 3, 9))  # standard error 1
    assert difference.df == pytest.approx(8)
    assert difference.high == pytest.approx(1 + stats.t.ppf(0.975, 8))


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
    assert welch(ours, paper) == Difference(1, reason=reason)
