"""Notes on differences between rows: pairs with and without k-MIP, the best row, printed numbers, ranks over sets."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from scipy import stats

from graphgps_kmip.experiments.experiment_spec import TableSpec, Training
from graphgps_kmip.experiments.manifest import PrintedCell
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable, training_overlap
from graphgps_kmip.report.table_notes import rank_notes, significance_notes, table_notes
from graphgps_kmip.report.welch import compare_runs, difference_text, holm
from tests.report.example_runs import EXPERIMENT, SCORES, build, record, search_record, tuned_table

CORA = "Cora score"


def side(table: ResultTable, row: str) -> Ours:
    return table.rows[row][CORA].ours


def change_rows(table: ResultTable, **rows: Cell) -> ResultTable:
    return dataclasses.replace(table, rows=table.rows | {row: {CORA: cell} for row, cell in rows.items()})


def over_splits(table: ResultTable, overlap: float | None) -> ResultTable:
    cells = {row: Cell(dataclasses.replace(side(table, row), overlap=overlap)) for row in table.rows}
    return change_rows(table, **cells)


def test_of_equally_tuned_models_the_best_is_compared_with_each_and_all_pairs_count() -> None:
    (text,) = significance_notes(tuned_table())
    assert text.startswith(
        "Cora score, the best row minus each other one, in percentage points, 95% interval and two-sided p of Welch's "
        "t over runs of one split, p by Holm for 3 comparisons: GCN - GAT +"
    )
    pairs = [("GCN", "GAT"), ("GCN", "kMIP"), ("GAT", "kMIP")]
    p_values = {pair: stats.ttest_ind(*(SCORES[row] for row in pair), equal_var=False).pvalue for pair in pairs}
    corrected = holm(p_values)
    assert text.count(" - ") == 2
    assert f", p {corrected['GCN', 'GAT']:.2g}; GCN - kMIP +" in text
    assert text.endswith(f", p {corrected['GCN', 'kMIP']:.2g}.")
    errors = tuned_table(columns={CORA: {"better": "lower"}})
    assert "kMIP - GCN -7.7 [" in "".join(significance_notes(errors))


def test_over_splits_the_note_names_the_correction_and_sizes_that_are_not_known() -> None:
    (text,) = significance_notes(over_splits(tuned_table(), 0.5))
    assert (
        "of the corrected resampled t over splits (Nadeau and Bengio 2003; n_test / n_train = 0.5), p by Holm" in text
    )
    (text,) = significance_notes(over_splits(tuned_table(), None))
    assert "in percentage points, without intervals: sizes of the splits not known: GCN - GAT +0.77 [-]; " in text


def test_pairs_with_and_without_kmip_are_listed_also_where_nothing_was_tuned() -> None:
    rows = {"GCN": SCORES["GAT"], "GCN+kMIP": SCORES["GCN"], "GAT": SCORES["kMIP"], "GAT+kMIP": SCORES["GAT"]}
    rows |= {"SAGE+kMIP": SCORES["GAT"]}
    cells = {row: {CORA: Cell(Ours(values, tuple(range(6)), 6))} for row, values in rows.items()}
    table = over_splits(tuned_table(rows=cells, searches={}), 0.5)
    (text,) = significance_notes(table)
    pairs = {row: compare_runs(side(table, f"{row}+kMIP"), side(table, row)).p for row in ("GCN", "GAT")}
    corrected = holm(pairs)
    assert text.startswith(
        "Cora score, with k-MIP minus without, in percentage points, 95% interval and two-sided p of"
    )
    assert "p by Holm for 2 comparisons: GCN+kMIP - GCN +0.8 [" in text
    assert f", p {corrected['GCN']:.2g}; GAT+kMIP - GAT +6.9 [" in text
    assert text.endswith(f", p {corrected['GAT']:.2g}.")
    assert "SAGE" not in text
    tuned = dataclasses.replace(table, searches=dict.fromkeys(rows, search_record()))
    assert [note.partition(", in ")[0] for note in significance_notes(tuned)] == [
        "Cora score, with k-MIP minus without",
        "Cora score, the best row minus each other one",
    ]


def test_the_differences_that_a_table_names_are_a_family_of_their_own() -> None:
    table = tuned_table(searches={}, compare=(("kMIP", "GAT"), ("kMIP", "unknown")))
    (text,) = significance_notes(table)
    difference = compare_runs(side(table, "kMIP"), side(table, "GAT"))
    assert text.startswith("Cora score, differences, in percentage points, 95% interval")
    assert text.endswith(f"p by Holm for 1 comparison: kMIP - GAT {difference_text(difference)}, p {difference.p:.2g}.")


def test_partial_rows_are_compared_where_all_runs_have_one_split_and_never_ranked() -> None:
    unfinished = Cell(dataclasses.replace(side(tuned_table(), "kMIP"), planned=9))
    table = change_rows(tuned_table(compare=(("kMIP", "GAT"),)), kMIP=unfinished)
    assert [note.partition(", in ")[0] for note in significance_notes(table)] == [
        f"{CORA}, the best row minus each other one"
    ]
    differences, ranking = significance_notes(table, partial=True)
    assert ": kMIP - GAT " in differences
    assert "kMIP" not in ranking
    assert len(list(significance_notes(over_splits(table, 0.5), partial=True))) == 1


def test_costs_are_not_compared() -> None:
    cells = {row: Cell(Ours(SCORES["GCN"], tuple(range(6)), 6)) for row in ("GCN", "GCN+kMIP")}
    for column, notes in (("Cora", 1), ("Cora score", 1), ("Cora epoch_seconds", 0), ("Cora memory_mb", 0)):
        rows = {row: {column: cell} for row, cell in cells.items()}
        table = tuned_table(rows=rows, columns={column: {"better": "lower"}}, searches={})
        assert len(list(significance_notes(table))) == notes, column


@pytest.mark.parametrize(
    ("printed", "ending"),
    [
        (PrintedCell("90.0 ± 1.0", 90.0, 1.0, 10), "by more than the interval: -8.7 [-9.9, -7.5]."),
        (PrintedCell("90.0", 90.0), "by more than the interval of our runs alone: -8.7 [-9.8, -7.5]."),
        (PrintedCell("82.0 ± 1.0", 82.0, 1.0, 10), ""),
        (PrintedCell("82.0", 82.0), ""),
    ],
)
def test_no_rows_are_ranked_where_the_best_is_below_the_best_printed_number(printed: PrintedCell, ending: str) -> None:
    made = tuned_table()
    made = change_rows(made, GAT=Cell(side(made, "GAT"), printed), GRIT=Cell(None, PrintedCell("70", 70.0)))
    (text,) = significance_notes(made)
    warning = f"Cora score: our best row, GCN, is worse than the best printed number, GAT {printed.text}, "
    assert text.startswith(warning if ending else "Cora score, the best row minus each other one")
    assert ending in text
    assert text.endswith("No conclusion about the ranking of models is drawn.") is bool(ending)
    assert "No conclusion" not in "".join(
        significance_notes(dataclasses.replace(made, columns={CORA: {"better": "lower"}}))
    )


def test_models_whose_runs_are_not_complete_are_left_out() -> None:
    lacking = change_rows(tuned_table(), GAT=Cell(Ours(SCORES["GAT"], tuple(range(6)), 7)))
    (text,) = significance_notes(lacking)
    assert "p by Holm for 1 comparison: GCN - kMIP" in text
    assert "GAT" not in text


def test_nothing_is_compared_where_runs_are_no_results_not_tuned_alike_or_of_one_model() -> None:
    rows = tuned_table().rows
    single = {row: {CORA: Cell(Ours(SCORES[row], tuple(range(6)), 6 + (row != "GCN")))} for row in rows}
    for made in (tuned_table(rows=single), tuned_table(sample=True), tuned_table(searches={})):
        assert not list(significance_notes(made))


def test_the_notes_of_a_table_have_the_differences_and_what_printed_spreads_are_taken_for() -> None:
    made = tuned_table()
    made = over_splits(made, 0.5)
    made = change_rows(made, GAT=Cell(side(made, "GAT"), PrintedCell("80.0 ± 1.0", 80.0, 1.0, 10)))
    notes = list(table_notes(made, partial=False))
    (text,) = (note for note in notes if note.startswith("runs are over random splits"))
    assert "with n_test / n_train = 0.5, the variance of a mean is taken as (1 / n + n_test / n_train) s^2" in text
    assert set(significance_notes(made)) <= set(notes)


def test_ranks_over_data_sets_are_of_the_models_that_all_of_them_have() -> None:
    def data_set(name: str, better: str, scores: dict[str, tuple[float, ...]], planned: int = 2) -> ResultTable:
        rows = {row: {f"{name} score": Cell(Ours(of, tuple(range(len(of))), planned))} for row, of in scores.items()}
        searches = {row: search_record() for row in scores}
        return tuned_table(columns={f"{name} score": {"better": better}}, rows=rows, searches=searches)

    cora = data_set("Cora", "higher", {"GCN": (1.0, 5.0), "GAT": (2.0, 2.0), "kMIP": (0.0, 1.0)})
    zinc = data_set("ZINC", "lower", {"kMIP": (0.1, 0.1), "GCN": (0.3, 0.3), "GAT": (0.2, 0.2), "GRIT": (0.0, 0.0)})
    (note,) = rank_notes([cora, zinc])
    assert note.startswith(
        "mean rank over Cora, ZINC, of the models that all of them have: GAT 2.0, GCN 2.0, kMIP 2.0."
    )
    (note,) = rank_notes([cora, dataclasses.replace(zinc, columns={"ZINC score": {"better": "higher"}})])
    assert "GCN 1.0, GAT 2.0, kMIP 3.0." in note
    unfinished = data_set("ZINC", "lower", {"kMIP": (0.1,), "GCN": (0.3,), "GAT": (0.2,)})
    zinc.rows["GCN"]["ZINC score"] = Cell(zinc.rows["GCN"]["ZINC score"].ours, PrintedCell("-9 ± 1", -9.0, 1.0, 4))
    for tables in ([], [cora], [cora, unfinished], [cora, zinc]):
        (note,) = rank_notes(tables)
        assert note.startswith(
            "ranks over data sets: at least two models must be complete on two data sets where our best"
        )


def test_the_overlap_of_splits_is_that_of_the_sizes_on_the_dataset_card() -> None:
    splits = Training({}, "Fair/minesweeper.yaml", (0, 1), splits=True)
    assert training_overlap(splits) == 2500 / 5000
    assert training_overlap(dataclasses.replace(splits, splits=False)) == 0


def test_scores_over_splits_carry_the_overlap_and_costs_do_not(tmp_path: Path) -> None:
    training = Training({"dataset": "digits", "model": "GCN"}, "Fair/minesweeper.yaml", (0, 1), splits=True)
    for seed in training.seeds:
        record(training.run_dir(seed, tmp_path))
    spec = TableSpec("x", "score params", columns={"digits score": {}, "digits params": {}})
    cells = build(tmp_path, spec, dataclasses.replace(EXPERIMENT, trainings=(training,))).rows["GCN"]
    assert [cells[f"digits {kind}"].ours.overlap for kind in ("score", "params")] == [0.5, 0.0]
