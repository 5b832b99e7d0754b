"""What the entries of a table and the notes below it say."""

from __future__ import annotations

import dataclasses
from html import unescape
from pathlib import Path

from graphgps_kmip.experiments.printed_tables import PrintedCell
from graphgps_kmip.experiments.run_status import State, Status
from graphgps_kmip.report.result_table import Cell, Ours
from graphgps_kmip.report.table_formats import FORMATS
from tests.report.example_tables import RUN, markdown_cells, ours, result_table


def test_ours_stands_beside_the_paper_with_difference_interval_and_both_n() -> None:
    # Standard error sqrt(4 / 3 + 1 / 3) = 1.29099, 2.94118 degrees of freedom, whose 97.5 % quantile is 3.2188.
    assert markdown_cells()["GCN"][:4] == ["*62.00 ± 2.00*", "*61.00 ± 1.00* [a]", "+1.00 [-3.16, +5.16]", "3 / 3"]
    assert "- [a] quoted by the paper from Someone & Co. 2023" in FORMATS["md"](result_table())


def test_one_run_has_neither_spread_nor_interval() -> None:
    assert markdown_cells()["GAT"][:4] == ["**70.13**", "**70.20**", "-0.07 [-]", "1 / 1"]


def test_a_cell_that_lacks_runs_shows_how_many_and_what_failed_but_no_mean() -> None:
    assert markdown_cells()["k\\|MIP_1"] == [
        *("2 of 5; 1 failed; 1 diverged", "OOM", "-", "2 / ?"),
        *("0 of 2", "0"),
    ]
    text = FORMATS["md"](result_table())
    assert "- k|MIP_1, digits, seed 2 failed: out of memory" in text
    assert "- k|MIP_1, digits, seed 4 diverged: loss is nan" in text


def test_with_partial_the_mean_of_the_finished_runs_stands_there_unranked() -> None:
    found = markdown_cells(partial=True)["k\\|MIP_1"]
    assert found[0] == "31.00 ± 1.41 (2 of 5); 1 failed; 1 diverged"
    assert found[4] == "0 of 2"


def test_cells_of_a_command_that_is_not_done_show_its_state() -> None:
    table = result_table()
    failed = Status(State.FAILED, RUN, {}, "no GPU")
    table.rows["GCN"]["digits"] = Cell(Ours(wanted=1, unfinished={"speed": failed}))
    assert markdown_cells(table=table)["GCN"][0] == "failed"
    assert "- command speed failed: no GPU" in FORMATS["md"](table)


def test_a_cell_without_run_number_or_known_n_says_so() -> None:
    cells = markdown_cells()
    assert cells["<last> 50%"] == ["-", "40.00 ± 1.00 (3rd)", "-", "- / ?", "-", "-"]
    assert cells["GINE"][:4] == ["50.25 ± 0.35 (3rd)", "-", "-", "2 / -"]
    assert cells["GAT"][4:] == ["OOM", "-"]


def test_decimals_are_those_printed_else_two_digits_of_the_spread() -> None:
    assert markdown_cells()["GCN"][4] == "0.5050 ± 0.0071"
    whole = result_table()
    whole.rows["GCN"]["digits"] = Cell(ours(61.2, 61.3), PrintedCell("61", 61.0, None, 1))
    whole.rows["GAT"]["digits"] = Cell(ours(70.0, 70.0))
    assert markdown_cells(table=whole)["GCN"][:3] == ["*61 ± 0.07*", "**61**", "+0 [-]"]
    assert markdown_cells(table=whole)["GAT"][0] == "**70**"


def test_notes_tell_kinds_of_deviation_settings_and_hardware() -> None:
    for name in ("md", "tex", "html"):
        text = FORMATS[name](result_table())
        assert "sample standard deviation (n - 1)" in text
        assert "the papers do not say which kind theirs is" in text
        assert "exact: " in text
        assert "our hardware: EPYC, 2 cores" in text
        assert "the paper's hardware: a V100" in unescape(text)
    assert "A note {in} 50 % of_cases." in FORMATS["md"](result_table())


def test_the_title_names_table_experiment_and_how_many_runs_are_finished() -> None:
    one = result_table(rows={"GCN": {"digits": Cell(ours(1.0, 2.0, wanted=3, s2=(State.FAILED, "why")))}})
    one = dataclasses.replace(one, columns={"digits": {}}, settings={"GCN": "ours"})
    assert FORMATS["md"](one).startswith("### Accuracy & more_or_less (paper/1, E, 2 of 3 runs)\n")
    same = dataclasses.replace(one, id="E")
    assert FORMATS["md"](same).startswith("### Accuracy & more_or_less (E, 2 of 3 runs)\n")


def test_why_there_is_no_interval_is_said_with_the_number_of_cells() -> None:
    table = result_table()
    unknown = dataclasses.replace(table.rows["GCN"]["digits"].printed, n=None)
    table.rows["GCN"]["digits"] = dataclasses.replace(table.rows["GCN"]["digits"], printed=unknown)
    assert markdown_cells(table=table)["GCN"][2] == "+1.00 [-]"
    expected = "[-]: no interval can be given (the paper: number of runs not known, 1 cell; ours: one run, 1 cell)."
    assert expected in FORMATS["html"](table)
    assert "no interval" not in FORMATS["html"](result_table(rows={}, settings={}))


def test_a_failure_of_many_cells_is_told_once_with_its_reason() -> None:
    table = result_table()
    for row in ("GCN", "GAT"):
        status = Status(State.FAILED, Path(row), {}, "no memory")
        table.rows[row] = dict.fromkeys(table.columns, Cell(Ours(wanted=1, unfinished={3: status})))
    assert "- GCN, digits, seed 3; GAT, digits, seed 3 failed: no memory\n" in FORMATS["md"](table)
    assert FORMATS["md"](table).count("no memory") == 1


def test_settings_that_all_rows_share_stand_below_and_not_in_a_column() -> None:
    table = result_table(settings=dict.fromkeys(result_table().rows, "exact"))
    for name, column in (("md", "| settings"), ("tex", "& settings"), ("html", 'class="settings"')):
        assert column in FORMATS[name](result_table())
        assert column not in FORMATS[name](table)
        assert "settings exact: the paper" in FORMATS[name](table)


def test_sizes_have_digits_of_their_own() -> None:
    cells = {"N=10": Cell(ours(0.0512, 0.0534)), "N=99": Cell(ours(1712.1, 1790.3)), "N=5": Cell(ours(7.25))}
    rows = {row: {"time": cell} for row, cell in cells.items()}
    facts = {"better": "lower", "ranked": False}
    text = FORMATS["md"](result_table(columns={"time": facts}, rows=rows, settings=dict.fromkeys(rows, "ours")))
    for entry in ("0.0523 ± 0.0016", "1751 ± 55", "7.250"):
        assert f" {entry} " in text
