"""Notes of a table: the Welch interval, paired tests of tuned models, and claims of the papers on our rows."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
from scipy import stats

from graphgps_kmip.experiments.manifest import load_manifest
from graphgps_kmip.experiments.printed_tables import PrintedCell, load_printed
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable, build_table
from graphgps_kmip.report.table_notes import CHECKS, claim_notes, rank_notes, table_notes
from graphgps_kmip.report.welch import Difference, against_best, holm, mean_ranks, smallest_p, welch
from tests.report.example_runs import search_record

SCORES = {
    "GCN": (80.0, 81.0, 82.0, 80.5, 81.5, 83.0),
    "GAT": (79.0, 80.5, 82.0, 80.0, 79.0, 82.9),
    "kMIP": (70.0, 82.0, 72.0, 73.0, 74.0, 71.0),
}


def tuned_table(**changes: object) -> ResultTable:
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
    text = " ".join(table_notes(tuned_table(), partial=False))
    assert "Cora score, mean rank over 6 runs: GCN 1.2, GAT 2.1, kMIP 2.7." in text
    assert "Cora score, GCN minus each, paired by run: mean, 95% bootstrap interval" in text
    few = "6 runs are too few for these tests: the smallest p that they allow, before the correction, is 0.0312."
    assert few in text


def test_models_whose_runs_are_not_complete_are_left_out_and_the_note_says_so() -> None:
    lacking = tuned_table().rows | {"GAT": {"Cora score": Cell(Ours(SCORES["GAT"], tuple(range(6)), 7))}}
    text = " ".join(table_notes(tuned_table(rows=lacking), partial=True))
    assert "Cora score, the 2 models that are complete, mean rank over 6 runs: GCN 1.2, kMIP 1.8." in text
    assert "GAT" not in text.partition("mean rank")[2]


def test_nothing_is_tested_where_runs_differ_are_no_results_or_are_of_one_model() -> None:
    rows = tuned_table().rows
    others = rows | {"GAT": {"Cora score": Cell(Ours(SCORES["GAT"], tuple(range(1, 7)), 6))}}
    single = {row: {"Cora score": Cell(Ours(SCORES[row], tuple(range(6)), 6 + (row != "GCN")))} for row in rows}
    for untested in (
        tuned_table(rows=single),
        tuned_table(rows=others),
        tuned_table(sample=True),
        tuned_table(searches={}),
    ):
        assert "mean rank" not in " ".join(table_notes(untested, partial=False))


def test_the_notes_say_trials_cost_choice_and_which_ranges_are_shared() -> None:
    fewer = search_record(ranges={"lr": ["0.1", ["0.1", "0.01"]]}, failed=2, seconds=30.0)
    searches = {"kMIP": search_record(choice={"lr": "0.01", "k": "10"}), "GCN": fewer}
    text = " ".join(table_notes(tuned_table(searches=searches), partial=False))
    for part in (
        "tuning: 10 trials each, chosen on validation alone, with seed 100, which no number here is of",
        "all together 20 trials (2 failed) in 1 min 30 s.",
        "ranges of all models: lr 0.1/0.01.",
        "GCN: lr 0.1 (validation accuracy 0.8, best of 10 trials, 2 failed, 30 s).",
        "kMIP: lr 0.01, k 10 (validation accuracy 0.8, best of 10 trials, 1 min; own ranges: k 5/10).",
    ):
        assert part in text
    unequal = tuned_table(searches={"GCN": search_record(trials=20), "kMIP": search_record()})
    assert "tuning: NOT EQUAL, trials: GCN 20, kMIP 10," in " ".join(table_notes(unequal, partial=False))


def test_ranks_over_data_sets_are_of_the_models_that_all_of_them_have() -> None:
    def data_set(name: str, better: str, scores: dict[str, tuple[float, ...]], planned: int = 2) -> ResultTable:
        rows = {row: {f"{name} score": Cell(Ours(of, tuple(range(len(of))), planned))} for row, of in scores.items()}
        searches = {row: search_record() for row in scores}
        return tuned_table(columns={f"{name} score": {"better": better}}, rows=rows, searches=searches)

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
    our_side, paper = Ours(tuple(75 + np.random.default_rng(0).normal(size=5)), planned=5), [74.1, 74.9, 75.3, 74.4]
    expected = stats.ttest_ind(our_side.values, paper, equal_var=False)
    difference = welch(our_side, side(np.mean(paper), np.std(paper, ddof=1), 4))
    assert (difference.low, difference.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert difference.df == pytest.approx(expected.df)
    assert difference.value == pytest.approx(np.mean(our_side.values) - np.mean(paper))
    assert not difference.reason


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


MANIFESTS = Path(__file__).parents[2] / "run" / "experiments"
SECOND = {"check": "rank", "row": "kMIP", "rank": 2}
NOT_BELOW = {"check": "not_below", "row": "kMIP", "than": "GAT", "columns": ["score"]}
FLAT = {"check": "flat", "rows": ["GCN", "GAT", "kMIP"], "columns": ["score"]}


def table(claim: dict[str, Any], **rows: tuple[float, ...]) -> ResultTable:
    """A table of scores and of errors, which are 100 - score; four runs are planned."""
    cells = {
        row: {
            "score": Cell(Ours(values, tuple(range(len(values))), 4)),
            "error": Cell(Ours(tuple(100 - value for value in values), tuple(range(len(values))), 4)),
        }
        for row, values in rows.items()
    }
    columns = {"score": {"better": "higher"}, "error": {"better": "lower"}}
    return ResultTable("x/table", "X", "X", columns, cells, dict.fromkeys(rows, "ours"), claims=(claim,))


def note(made: ResultTable, partial: bool = False) -> str:
    (text,) = claim_notes(made, partial)
    return text


GAT, GCN, KMIP = (70.0, 72.0, 71.0, 73.0), (60.0, 61.0, 62.0, 60.5), (70.5, 71.0, 71.5, 70.0)


def test_a_rank_holds_in_columns_of_scores_and_of_errors_or_it_does_not_hold() -> None:
    made = table(SECOND, GCN=GCN, GAT=GAT, kMIP=KMIP)
    ranks = "rank 2 of 3 on score, rank 2 of 3 on error"
    assert note(made) == f"claim, kMIP second on score, error: holds for our rows ({ranks}; 4 runs each)."
    for rows in ({"GCN": KMIP, "GAT": GAT, "kMIP": GCN}, {"GCN": GCN, "GAT": KMIP, "kMIP": GAT}):
        assert "does NOT hold for our rows" in note(table(SECOND, **rows))
    made.rows["GCN"]["error"] = Cell(Ours((1.0,) * 4, (0, 1, 2, 3), 4))
    assert "does NOT hold for our rows (rank 2 of 3 on score, rank 3 of 3 on error" in note(made)


@pytest.mark.parametrize("column", ["score", "error"])
def test_a_row_is_below_by_the_one_tailed_test_of_welch(column: str) -> None:
    claim = NOT_BELOW | {"columns": [column]}
    p = scipy.stats.ttest_ind(KMIP, GAT, equal_var=False, alternative="less").pvalue
    holds = note(table(claim, GAT=GAT, kMIP=KMIP))
    assert f"kMIP not significantly worse than GAT on {column}: holds for our rows" in holds
    assert f"one-tailed Welch's t-test at 5%: p {p:.3g} on {column}; 4 runs each" in holds
    assert "does NOT hold" in note(table(claim, GAT=GAT, kMIP=GCN))
    assert ": holds" in note(table(claim, GAT=GCN, kMIP=GAT)), "a better row is not below, however far away"


@pytest.mark.filterwarnings("ignore:Precision loss")
def test_equal_runs_are_not_below_one_another() -> None:
    assert ": holds" in note(table(NOT_BELOW, GAT=(70.0,) * 4, kMIP=(70.0,) * 4))


def test_flat_is_no_significant_difference_between_the_rows() -> None:
    near = (70.2, 71.5, 70.7, 72.4)
    p = scipy.stats.f_oneway(near, GAT, KMIP).pvalue
    text = note(table(FLAT, GCN=near, GAT=GAT, kMIP=KMIP))
    assert "no difference between GCN, GAT, kMIP on score: holds" in text
    assert f"p {p:.3g} on score" in text
    assert "does NOT hold" in note(table(FLAT, GCN=GCN, GAT=GAT, kMIP=KMIP))


@pytest.mark.parametrize("claim", [SECOND, NOT_BELOW, FLAT])
def test_rows_that_lack_runs_are_named_and_partial_tables_take_what_there_is(claim: dict[str, Any]) -> None:
    lacking = table(claim, GCN=GCN, GAT=GAT[:2], kMIP=())
    assert note(lacking).endswith("not yet run (" + ("kMIP, GAT)." if claim is NOT_BELOW else "GAT, kMIP)."))
    assert note(lacking, partial=True).endswith("not yet run (kMIP).")
    assert "2 to 4 runs each" in note(table(claim, GCN=GCN, GAT=GAT[:2], kMIP=KMIP), partial=True)
    diverged = note(table(claim, GCN=GCN, GAT=(*GAT[:3], float("nan")), kMIP=KMIP))
    assert "not yet run (GAT)" in diverged, "a run that ended without a number is no run"


def test_quoted_rows_do_not_compete_and_samples_are_not_checked() -> None:
    made = table(SECOND, GCN=GCN, GAT=GAT, kMIP=KMIP)
    made.rows["GRIT"] = {"score": Cell(), "error": Cell()}
    assert "rank 2 of 3 on score" in note(made)
    assert list(claim_notes(dataclasses.replace(made, sample=True), partial=False)) == []


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (SECOND | {"check": "ranks"}, "X, x/table: claim: unknown check 'ranks'. Did you mean rank"),
        (SECOND | {"row": "kMIPs"}, "'kMIPs' is not in the table. Did you mean kMIP"),
        (NOT_BELOW | {"columns": ["scores"]}, "'scores' is not in the table. Did you mean score"),
    ],
)
def test_a_claim_about_what_is_not_there_is_refused(claim: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        note(table(claim, GCN=GCN, GAT=GAT, kMIP=KMIP))


def runs(mean: float, std: float, count: int) -> Ours:
    """Runs with exactly this mean and this sample standard deviation."""
    values = np.linspace(-1, 1, count)
    return Ours(tuple((mean + std * values / values.std(ddof=1)).tolist()), tuple(range(count)), count)


def with_printed_runs(identity: str, experiment: str) -> ResultTable:
    owner, printed = load_manifest(MANIFESTS)[experiment], load_printed(MANIFESTS / "printed")
    made = build_table(owner, owner.tables[identity], printed, Path("nowhere"), lambda _: "")
    assert all("not yet run" in text for text in claim_notes(made, partial=False))
    rows = {
        row: {
            column: Cell(cell.ours and runs(cell.printed.mean, cell.printed.std, cell.printed.n), cell.printed)
            for column, cell in cells.items()
        }
        for row, cells in made.rows.items()
    }
    return dataclasses.replace(made, rows=rows)


@pytest.mark.parametrize(
    ("experiment", "identity", "verdicts"),
    [
        ("T-6.1", "kmip-thesis/table6.1", ["holds"]),
        ("P-T3", "ppgt/table3", ["holds"]),
        ("K-5.3c", "kmip-paper/table3", ["holds", "holds"]),
        # by the printed means and deviations themselves, k matters on PascalVOC-SP: p 0.018
        ("T-6.4a", "kmip-thesis/table6.2", ["holds", "does NOT hold"]),
        ("K-I.2", "kmip-paper/table8", ["holds", "does NOT hold"]),
    ],
)
def test_the_claims_of_the_experiments_fit_their_tables(experiment: str, identity: str, verdicts: list[str]) -> None:
    made = with_printed_runs(identity, experiment)
    texts = [text for text in table_notes(made, partial=False) if text.startswith("claim, ")]
    assert [text.partition(": ")[2].partition(" for our rows")[0] for text in texts] == verdicts, texts


def test_every_check_is_that_of_an_experiment() -> None:
    specs = [spec for owner in load_manifest(MANIFESTS).values() for spec in owner.tables.values()]
    assert {claim["check"] for spec in specs for claim in spec.claims} == set(CHECKS)
