"""Entries, ranks and notes of a table, and its four formats: each can be read back."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from graphgps_kmip.experiments.manifest import PrintedCell
from graphgps_kmip.experiments.run_status import State, Status
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable
from graphgps_kmip.report.table_formats import FORMATS, column_ranks, ranks

RUN = Path("results/LRGB/x")
RECORD = {"code_version": "abc1234", "hardware": {"cpu": "EPYC", "cores": 2}, "finished_at": "2026-01-02T03:04:05"}


def our_side(*values: float, planned: int | None = None, **unfinished: tuple[State, str]) -> Ours:
    left = {int(seed[1:]): Status(state, RUN / seed[1:], {}, error) for seed, (state, error) in unfinished.items()}
    done = {seed: Status(State.DONE, RUN / str(seed), RECORD) for seed in range(len(values))}
    return Ours(values, tuple(done), len(values) if planned is None else planned, left, done)


def result_table(**changes: Any) -> ResultTable:
    failed = our_side(30.0, 32.0, planned=5, s2=(State.FAILED, "out of memory"), s4=(State.DIVERGED, "loss is nan"))
    digits = {
        "GCN": Cell(our_side(60.0, 62.0, 64.0), PrintedCell("61.00 ± 1.00", 61.0, 1.0, 3, "Someone & Co. 2023")),
        "GAT": Cell(our_side(70.126), PrintedCell("70.20", 70.2, None, 1)),
        "k|MIP_1": Cell(failed, PrintedCell("OOM")),
        "GINE": Cell(our_side(50.0, 50.5)),
        "<last> 50%": Cell(None, PrintedCell("40.00 ± 1.00", 40.0, 1.0)),
    }
    other = dict.fromkeys(digits, Cell()) | {
        "GCN": Cell(our_side(0.5, 0.51)),
        "GAT": Cell(dataclasses.replace(our_side(), text="OOM")),
        "k|MIP_1": Cell(our_side(planned=2)),
    }
    return ResultTable(
        **{
            "id": "paper/1",
            "title": "Accuracy & more_or_less",
            "experiment": "E",
            "columns": {
                "digits": {"metric": "accuracy", "better": "higher", "unit": "%"},
                "error": {"metric": "MAE", "better": "lower"},
            },
            "rows": {row: {"digits": digits[row], "error": other[row]} for row in digits},
            "settings": dict.fromkeys(digits, "ours") | {"GCN": "exact"},
            "printed_hardware": "a V100",
            "notes": ("A note {in} 50 % of_cases.",),
        }
        | changes
    )


def sample_table() -> ResultTable:
    table = result_table()
    rows = {row: {c: Cell(cell.ours) for c, cell in cells.items()} for row, cells in table.rows.items()}
    return dataclasses.replace(table, rows=rows, sample=True)


def blocks(text: str) -> list[list[list[str]]]:
    parts = [[re.split(r"(?<!\\)\|", line)[1:-1] for line in part.splitlines()] for part in text.split("\n\n")]
    return [[[cell.strip() for cell in line] for line in block] for block in parts if block and block[0]]


def markdown_cells(partial: bool = False, table: ResultTable | None = None) -> dict[str, list[str]]:
    cells: dict[str, list[str]] = {}
    for block in blocks(FORMATS["md"](table or result_table(), partial=partial)):
        for line in block:
            cells.setdefault(line[0], []).extend(line[2:])
    return cells


CELLS = {
    # Standard error sqrt(4 / 3 + 1 / 3) = 1.29099, 2.94118 degrees of freedom, whose 97.5 % quantile is 3.2188.
    "GCN": ["*62.00 ± 2.00*", "*61.00 ± 1.00* [a]", "+1.00 [-3.16, +5.16]", "3 / 3", "0.5050 ± 0.0071", "2"],
    "GAT": ["**70.13**", "**70.20**", "-0.07 [-]", "1 / 1", "OOM", "-"],
    "k\\|MIP_1": ["2 of 5; 1 failed; 1 diverged", "OOM", "-", "2 / ?", "0 of 2", "0"],
    "GINE": ["50.25 ± 0.35 (3rd)", "-", "-", "2 / -", "-", "-"],
    "<last> 50%": ["-", "40.00 ± 1.00 (3rd)", "-", "- / ?", "-", "-"],
}
NOTES = (
    "[a] quoted by the paper from Someone & Co. 2023",
    "k|MIP_1, digits, seed 2 failed: out of memory",
    "k|MIP_1, digits, seed 4 diverged: loss is nan",
    "sample standard deviation (n - 1)",
    "the papers do not say which kind theirs is",
    "exact: the paper's settings",
    "our hardware: EPYC, 2 cores.",
    "the paper's hardware: a V100.",
    "A note {in} 50 % of_cases.",
)


def test_ours_is_next_to_the_paper_with_difference_interval_counts_ranks_and_notes() -> None:
    cells = markdown_cells()
    assert {row: cells[row] for row in CELLS} == CELLS
    text = FORMATS["md"](result_table())
    assert all(note in text for note in NOTES)
    assert "digits: accuracy, %, higher is better." in text
    assert text.startswith("### Accuracy & more_or_less (paper/1, E, 2 of 4 runs)\n")
    same = dataclasses.replace(result_table(), id="E")
    assert FORMATS["md"](same).startswith("### Accuracy & more_or_less (E, 2 of 4 runs)\n")


def test_rows_of_several_machines_are_named() -> None:
    table, side = result_table(), our_side(70.0, 71.0)
    side.sources[1] = Status(State.DONE, RUN, RECORD | {"hardware": {"gpu": "A100"}})
    table.rows["GAT"]["digits"] = Cell(side)
    assert "our hardware: A100 (GAT); EPYC, 2 cores (GCN, GAT, k|MIP_1, GINE); seconds, and" in FORMATS["md"](table)


def test_with_partial_the_mean_of_the_finished_runs_is_shown_unranked() -> None:
    cells = markdown_cells(partial=True)["k\\|MIP_1"]
    assert (cells[0], cells[4]) == ("31.00 ± 1.41 (2 of 5); 1 failed; 1 diverged", "0 of 2")


def test_cells_of_a_command_that_is_not_done_show_its_state_and_a_failure_of_many_is_told_once() -> None:
    table = result_table()
    failed = Status(State.FAILED, RUN, {}, "no GPU")
    table.rows["GCN"]["digits"] = Cell(Ours(planned=1, unfinished={"speed": failed}))
    assert markdown_cells(table=table)["GCN"][0] == "failed"
    assert "- command speed failed: no GPU" in FORMATS["md"](table)
    for row in ("GCN", "GAT"):
        status = Status(State.FAILED, Path(row), {}, "no memory")
        table.rows[row] = dict.fromkeys(table.columns, Cell(Ours(planned=1, unfinished={3: status})))
    assert "- GCN, digits, seed 3; GAT, digits, seed 3 failed: no memory\n" in FORMATS["md"](table)
    assert FORMATS["md"](table).count("no memory") == 1


def test_decimals_are_those_printed_and_sizes_have_digits_of_their_own() -> None:
    whole = result_table()
    whole.rows["GCN"]["digits"] = Cell(our_side(61.2, 61.3), PrintedCell("61", 61.0, None, 1))
    whole.rows["GAT"]["digits"] = Cell(our_side(70.0, 70.0))
    assert markdown_cells(table=whole)["GCN"][:3] == ["*61 ± 0.07*", "**61**", "+0 [-]"]
    assert markdown_cells(table=whole)["GAT"][0] == "**70**"
    times = {"N=10": (0.0512, 0.0534), "N=99": (1712.1, 1790.3), "N=5": (7.25,)}
    rows = {row: {"time": Cell(our_side(*values))} for row, values in times.items()}
    facts = {"better": "lower", "ranked": False}
    text = FORMATS["md"](result_table(columns={"time": facts}, rows=rows, settings=dict.fromkeys(rows, "ours")))
    assert all(f" {entry} " in text for entry in ("0.0523 ± 0.0016", "1,751 ± 55", "7.250"))


def test_why_there_is_no_interval_is_said_with_the_number_of_cells() -> None:
    table = result_table()
    unknown = dataclasses.replace(table.rows["GCN"]["digits"].printed, n=None)
    table.rows["GCN"]["digits"] = dataclasses.replace(table.rows["GCN"]["digits"], printed=unknown)
    assert markdown_cells(table=table)["GCN"][2] == "+1.00 [-]"
    expected = "[-]: no interval can be given (the paper: number of runs not known, 1 cell; ours: one run, 1 cell)."
    assert expected in FORMATS["html"](table)
    assert "no interval" not in FORMATS["html"](result_table(rows={}, settings={}))


@pytest.mark.parametrize(("name", "column"), [("md", "| settings"), ("tex", "& settings"), ("html", ">settings<")])
def test_settings_that_all_rows_share_are_a_note_and_no_column(name: str, column: str) -> None:
    table = result_table(settings=dict.fromkeys(result_table().rows, "exact"))
    assert column in FORMATS[name](result_table())
    assert column not in FORMATS[name](table)
    assert "settings exact: the paper" in FORMATS[name](table)


@pytest.mark.parametrize("table", [result_table(), sample_table()])
@pytest.mark.parametrize("partial", [False, True])
def test_lines_of_a_markdown_block_are_equally_long(table: ResultTable, partial: bool) -> None:
    text = FORMATS["md"](table, partial=partial)
    assert blocks(text)
    for block in blocks(text):
        assert len({len(line) for line in block}) == 1
        assert [line[0] for line in block[2:]] == [row.replace("|", "\\|") for row in table.rows]
        assert all(re.fullmatch(r":?-+:?", rule) for rule in block[1])
    for part in text.split("\n\n"):
        assert len({len(line) for line in part.splitlines() if line.startswith("|")}) <= 1


@pytest.mark.parametrize(("printed", "expected"), [(PrintedCell("61.00 ± 1.00", 61.0, 1.0, 3), 6), (None, 2)])
def test_columns_that_do_not_fit_are_in_blocks(printed: PrintedCell | None, expected: int) -> None:
    columns = {f"data {i}": {} for i in range(6)}
    rows = {"GCN": dict.fromkeys(columns, Cell(our_side(60.5, 62.0, 64.0), printed))}
    table = result_table(columns=columns, rows=rows, settings={"GCN": "ours"}, notes=("word " * 50,))
    text = FORMATS["md"](table)
    headings = [block[0] for block in blocks(text)]
    assert len(headings) == expected
    assert [name.split(":")[0] for line in headings for name in line if "data" in name] == list(columns)
    assert [FORMATS[name](table).count(start) for name, start in (("tex", r"\begin{tabular}"), ("html", "<table"))] == [
        expected,
        expected,
    ]
    assert max(map(len, text.splitlines())) <= 118
    assert "\n  word word" in text


@pytest.mark.parametrize("name", ["md", "tex", "html"])
def test_a_sample_says_so_in_title_and_cells_and_no_printed_number_is_shown(name: str) -> None:
    text = FORMATS[name](sample_table())
    assert "SAMPLE, no results: Accuracy" in text
    assert re.sub('aria-label="[^"]*"', "", text).count("SAMPLE ") == 4 + 3  # cells with runs of ours, of both columns
    for word in ("61.00 ± 1.00", "difference", "[a]", "(3rd)", "best"):
        assert word not in text


def read_csv(table: ResultTable, partial: bool = False) -> dict[tuple[str, str], dict[str, str]]:
    lines = csv.DictReader(io.StringIO(FORMATS["csv"](table, partial=partial)))
    return {(line["row"], line["column"]): line for line in lines}


def test_csv_has_one_line_for_each_cell_with_all_facts_in_full_precision() -> None:
    lines = read_csv(result_table())
    assert list(lines) == [(row, column) for row in result_table().rows for column in ("digits", "error")]
    gcn, failed = lines["GCN", "digits"], lines["k|MIP_1", "digits"]
    assert {float(gcn[key]) for key in ("ours_mean", "ours_std", "difference")} == {62, 2, 1}
    assert float(gcn["high"]) - float(gcn["low"]) == pytest.approx(2 * 3.2188 * (5 / 3) ** 0.5, rel=1e-4)
    expected = {"table": "paper/1", "ours_n": "3", "wanted": "3", "seeds": "0 1 2", "values": "60.0 62.0 64.0"}
    expected |= {"paper_n": "3", "paper_text": "61.00 ± 1.00", "quoted": "Someone & Co. 2023", "settings": "exact"}
    assert gcn.items() >= expected.items()
    expected = {"failed": "2", "diverged": "4", "ours_mean": "", "ours_n": "2", "paper_text": "OOM", "paper_mean": ""}
    assert failed.items() >= (expected | {"sample": "False", "published": "False"}).items()
    assert lines["GAT", "digits"]["no_interval"] == "ours: one run"
    assert float(read_csv(result_table(), partial=True)["k|MIP_1", "digits"]["ours_mean"]) == 31
    assert {(line["sample"], line["paper_text"]) for line in read_csv(sample_table()).values()} == {("True", "")}


def test_latex_has_balanced_braces_equal_columns_and_nothing_left_to_escape() -> None:
    text = FORMATS["tex"](result_table(), partial=True)
    plain = re.sub(r"\\[{}&%_#$]", "", text)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert sorted(re.findall(r"\\begin\{(\w+)", plain)) == sorted(re.findall(r"\\end\{(\w+)", plain))
    for tabular in re.findall(r"\\begin\{tabular\}\{(l+r+)\}(.*?)\\end\{tabular\}", plain, re.DOTALL):
        rows = [line for line in tabular[1].splitlines() if line.endswith(r"\\")]
        spans = [sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)", line)) for line in rows]
        assert len(rows) == 2 + len(result_table().rows)
        assert {line.count("&") + 1 + span for line, span in zip(rows, spans, strict=True)} == {len(tabular[0])}
    body = plain.split("\n", 1)[1]  # after the comment with the packages
    assert not re.search(r"[%#^_~±]", body)
    for part in (r"\underline{62.00 $\pm$ 2.00}", r"\textit{50.25 $\pm$ 0.35}", r"$-$0.07 {[}-]"):
        assert part in text
    assert r"\underline{61.00 $\pm$ 1.00}\textsuperscript{a}" in text


def test_html_has_one_table_of_all_entries_with_ranks_as_classes() -> None:
    text = FORMATS["html"](result_table())
    assert [unescape(name) for name in re.findall(r'<th class="row_heading[^>]*>(.*?)</th>', text)] == [
        *result_table().rows
    ] * text.count("<table")
    for row, cell in (
        ("ours second", "62.00 ± 2.00"),
        ("ours best", "70.13"),
        ("ours incomplete", "2 of 5; 1 failed; 1 diverged"),
        ("paper second", "61.00 ± 1.00<sup>a</sup>"),
        ("settings", "exact"),
    ):
        assert re.search(rf'<td class="data row\d col\d {row}" >{re.escape(cell)}</td>', text), cell
    assert re.search(r'<th class="[^"]*" colspan="4">digits</th>', text)
    assert all(note in unescape(text) for note in NOTES)


@pytest.mark.parametrize("name", FORMATS)
def test_a_table_without_rows_can_be_written(name: str) -> None:
    text = FORMATS[name](result_table(rows={}, settings={}))
    assert name == "csv" or "Nothing to show yet: E has not run." in text


@pytest.mark.parametrize(
    ("values", "better", "expected"),
    [
        ({"a": 1.0, "b": 4.0, "c": 3.0, "d": 2.0}, "higher", {"b": 1, "c": 2, "d": 3}),
        ({"a": 1.0, "b": 4.0, "c": 3.0, "d": 2.0}, "lower", {"a": 1, "d": 2, "c": 3}),
        ({"a": 1.0, "b": 4.0}, None, {}),
        ({"a": 2.0, "b": 2.0, "c": 1.0, "d": 0.0}, "higher", {"a": 1, "b": 1, "c": 3}),
        ({"a": 3.0, "b": 2.0, "c": 2.0, "d": 2.0}, "higher", {"a": 1, "b": 2, "c": 2, "d": 2}),
        ({"a": None, "b": 1.0, "c": math.nan, "d": 2.0}, "higher", {"d": 1, "b": 2}),
        ({"a": None, "b": 1.0}, "higher", {}),
    ],
)
def test_the_three_best_are_ranked_equal_values_alike_and_what_is_no_number_not_at_all(
    values: dict[str, float | None], better: str | None, expected: dict[str, int]
) -> None:
    assert ranks(values, better) == expected


def test_our_complete_cells_as_shown_and_the_printed_ones_are_ranked_apart_samples_and_sizes_not() -> None:
    cells = {
        "a": Cell(Ours((1.0, 3.0), (0, 1), 2), PrintedCell("5", 5.0)),
        "b": Cell(Ours((9.0,), (0,), 2), PrintedCell("OOM")),
        "c": Cell(Ours((4.0, 4.0), (0, 1), 2), PrintedCell("4", 4.0)),
        "d": Cell(None, PrintedCell("6", 6.0)),
    }
    table = result_table(columns={"x": {"better": "higher"}}, rows={row: {"x": cell} for row, cell in cells.items()})
    assert column_ranks(table, "x") == ({"c": 1, "a": 2}, {"d": 1, "a": 2, "c": 3})
    assert column_ranks(dataclasses.replace(table, sample=True), "x")[0] == {}
    sizes = dataclasses.replace(table, columns={"x": {"better": "higher", "ranked": False}})
    assert column_ranks(sizes, "x") == ({}, {})
    table.rows["a"]["x"] = Cell(Ours((3.9, 4.12), (0, 1), 2), PrintedCell("4.0", 4.0))  # 4.01, shown as 4.0
    assert column_ranks(table, "x")[0] == {"a": 1, "c": 1}
