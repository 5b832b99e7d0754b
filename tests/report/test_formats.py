"""One table in four formats: what each cell says, and that each format can be read back."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from graphgps_kmip.experiments.printed import PrintedCell
from graphgps_kmip.experiments.state import State, Status
from graphgps_kmip.report.formats import FORMATS
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable

RUN = Path("results/LRGB/x")
RECORD = {"code_version": "abc1234", "hardware": {"cpu": "EPYC", "cores": 2}, "finished_at": "2026-01-02T03:04:05"}


def ours(*values: float, wanted: int | None = None, **unfinished: tuple[State, str]) -> Ours:
    left = {int(seed[1:]): Status(state, RUN / seed[1:], {}, error) for seed, (state, error) in unfinished.items()}
    done = {seed: Status(State.DONE, RUN / str(seed), RECORD) for seed in range(len(values))}
    return Ours(values, tuple(done), len(values) if wanted is None else wanted, left, done)


def result_table(**changes: Any) -> ResultTable:
    failed = ours(30.0, 32.0, wanted=5, s2=(State.FAILED, "out of memory"), s4=(State.DIVERGED, "loss is nan"))
    digits = {
        "GCN": Cell(ours(60.0, 62.0, 64.0), PrintedCell("61.00 ± 1.00", 61.0, 1.0, 3, "Someone & Co. 2023")),
        "GAT": Cell(ours(70.126), PrintedCell("70.20", 70.2, None, 1)),
        "k|MIP_1": Cell(failed, PrintedCell("OOM")),
        "GINE": Cell(ours(50.0, 50.5)),
        "<last> 50%": Cell(None, PrintedCell("40.00 ± 1.00", 40.0, 1.0)),
    }
    other = dict.fromkeys(digits, Cell()) | {
        "GCN": Cell(ours(0.5, 0.51)),
        "GAT": Cell(dataclasses.replace(ours(), text="OOM")),
        "k|MIP_1": Cell(ours(wanted=2)),
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
    """Return the tables of a Markdown text: lines of stripped cells."""
    found = [[re.split(r"(?<!\\)\|", line)[1:-1] for line in part.splitlines()] for part in text.split("\n\n")]
    return [[[cell.strip() for cell in line] for line in block] for block in found if block and block[0]]


def markdown_cells(partial: bool = False, table: ResultTable | None = None) -> dict[str, list[str]]:
    """Return the row's name -> cells, of all blocks side by side."""
    cells: dict[str, list[str]] = {}
    for block in blocks(FORMATS["md"](table or result_table(), partial=partial)):
        for line in block:
            cells.setdefault(line[0], []).extend(line[2:])
    return cells


def test_ours_stands_beside_the_paper_with_difference_interval_and_both_n() -> None:
    # Standard error sqrt(4 / 3 + 1 / 3) = 1.29099, 2.94118 degrees of freedom, whose 97.5 % quantile is 3.2188.
    assert markdown_cells()["GCN"][:4] == ["*62.00 ± 2.00*", "*61.00 ± 1.00* [a]", "+1.00 [-3.16, +5.16]", "3 / 3"]
    assert "- [a] quoted by the paper from Someone & Co. 2023" in FORMATS["md"](result_table())


def test_one_run_has_neither_spread_nor_interval() -> None:
    assert markdown_cells()["GAT"][:4] == ["**70.13**", "**70.20**", "-0.07 [-]", "1 / 1"]


def test_a_cell_that_lacks_runs_shows_how_many_and_its_failed_seeds_but_no_mean() -> None:
    assert markdown_cells()["k\\|MIP_1"] == [
        *("2 of 5; 1 failed: seed 2; 1 diverged: seed 4", "OOM", "-", "2 / ?"),
        *("0 of 2", "0"),
    ]
    text = FORMATS["md"](result_table())
    assert "- k|MIP_1, digits, seed 2 failed: out of memory" in text
    assert "- k|MIP_1, digits, seed 4 diverged: loss is nan" in text


def test_with_partial_the_mean_of_the_finished_runs_stands_there_unranked() -> None:
    found = markdown_cells(partial=True)["k\\|MIP_1"]
    assert found[0] == "31.00 ± 1.41 (2 of 5); 1 failed: seed 2; 1 diverged: seed 4"
    assert found[4] == "0 of 2"


def test_cells_of_a_command_that_is_not_done_show_its_state() -> None:
    table = result_table()
    failed = Status(State.FAILED, RUN, {}, "no GPU")
    table.rows["GCN"]["digits"] = Cell(Ours(wanted=1, unfinished={"speed": failed}))
    assert markdown_cells(table=table)["GCN"][0] == "failed"
    assert "- GCN, digits, command speed failed: no GPU" in FORMATS["md"](table)


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


@pytest.mark.parametrize("table", [result_table(), sample_table()])
@pytest.mark.parametrize("partial", [False, True])
def test_lines_of_a_markdown_block_are_equally_long_and_have_equally_many_columns(
    table: ResultTable, partial: bool
) -> None:
    text = FORMATS["md"](table, partial=partial)
    found = blocks(text)
    assert found
    for block in found:
        assert len({len(line) for line in block}) == 1
        assert [line[0] for line in block[2:]] == [row.replace("|", "\\|") for row in table.rows]
        assert all(re.fullmatch(r":?-+:?", rule) for rule in block[1])
    for part in text.split("\n\n"):
        assert len({len(line) for line in part.splitlines() if line.startswith("|")}) <= 1


@pytest.mark.parametrize(("printed", "expected"), [(PrintedCell("61.00 ± 1.00", 61.0, 1.0, 3), 6), (None, 2)])
def test_columns_that_do_not_fit_side_by_side_are_broken_into_blocks(
    printed: PrintedCell | None, expected: int
) -> None:
    columns = {f"data {i}": {} for i in range(6)}
    rows = {"GCN": dict.fromkeys(columns, Cell(ours(60.5, 62.0, 64.0), printed))}
    table = result_table(columns=columns, rows=rows, settings={"GCN": "ours"})
    headings = [block[0] for block in blocks(FORMATS["md"](table))]
    assert len(headings) == expected
    assert [text.split(":")[0] for line in headings for text in line if "data" in text] == list(columns)
    assert FORMATS["tex"](table).count(r"\begin{tabular}") == expected


@pytest.mark.parametrize("name", ["md", "tex", "html"])
def test_a_sample_says_so_in_title_and_cells_and_nothing_stands_beside(name: str) -> None:
    text = FORMATS[name](sample_table())
    assert "SAMPLE, no results: Accuracy" in text
    assert text.count("SAMPLE ") == 4 + 3  # cells with runs of ours, of both columns
    for word in ("61.00 ± 1.00", "difference", "[a]", "(3rd)", "best"):
        assert word not in text


def test_csv_has_one_line_for_each_cell_with_all_facts_in_full_precision() -> None:
    lines = list(csv.DictReader(io.StringIO(FORMATS["csv"](result_table()))))
    assert [(line["row"], line["column"]) for line in lines[:3]] == [
        ("GCN", "digits"),
        ("GCN", "error"),
        ("GAT", "digits"),
    ]
    assert len(lines) == 10
    by_place = {(line["row"], line["column"]): line for line in lines}
    gcn = by_place["GCN", "digits"]
    assert {float(gcn[key]) for key in ("ours_mean", "ours_std", "difference")} == {62, 2, 1}
    assert float(gcn["high"]) - float(gcn["low"]) == pytest.approx(2 * 3.2188 * (5 / 3) ** 0.5, rel=1e-4)
    assert (gcn["ours_n"], gcn["wanted"], gcn["seeds"], gcn["paper_n"]) == ("3", "3", "0 1 2", "3")
    assert (gcn["paper_text"], gcn["quoted"], gcn["settings"]) == ("61.00 ± 1.00", "Someone & Co. 2023", "exact")
    assert gcn["table"] == "paper/1"
    failed = by_place["k|MIP_1", "digits"]
    assert (failed["failed"], failed["diverged"], failed["ours_mean"], failed["ours_n"]) == ("2", "4", "", "2")
    assert (failed["paper_text"], failed["paper_mean"], failed["sample"]) == ("OOM", "", "False")
    assert by_place["GAT", "digits"]["no_interval"] == "ours: one run"
    partial = list(csv.DictReader(io.StringIO(FORMATS["csv"](result_table(), partial=True))))
    assert float(partial[4]["ours_mean"]) == 31
    samples = list(csv.DictReader(io.StringIO(FORMATS["csv"](sample_table()))))
    assert {(line["sample"], line["paper_text"]) for line in samples} == {("True", "")}


def test_latex_has_balanced_braces_equal_columns_and_nothing_left_to_escape() -> None:
    text = FORMATS["tex"](result_table(), partial=True)
    plain = re.sub(r"\\[{}&%_#$]", "", text)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert sorted(re.findall(r"\\begin\{(\w+)", plain)) == sorted(re.findall(r"\\end\{(\w+)", plain))
    for tabular in re.findall(r"\\begin\{tabular\}\{(l+r+)\}(.*?)\\end\{tabular\}", plain, re.DOTALL):
        rows = [line for line in tabular[1].splitlines() if line.endswith(r"\\")]
        wide = [
            line.count("&") + 1 + sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)", line)) for line in rows
        ]
        assert len(rows) == 2 + len(result_table().rows)
        assert set(wide) == {len(tabular[0])}
    body = plain.split("\n", 1)[1]  # after the comment with the packages
    assert not re.search(r"[%#^_~±]", body)
    assert r"\underline{62.00 $\pm$ 2.00}" in text
    assert r"\textit{50.25 $\pm$ 0.35}" in text
    assert "$-$0.07 {[}-]" in text
    assert r"\underline{61.00 $\pm$ 1.00}\textsuperscript{a}" in text


class Reader(HTMLParser):
    """Collect the rows of a table as (tag, attributes, text), and see that every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[list[Any]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append([tag, dict(attrs), ""])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1][2] += data


def test_html_has_scoped_headings_ranks_as_classes_and_the_origin_of_each_number() -> None:
    reader = Reader()
    reader.feed(FORMATS["html"](result_table()))
    assert not reader.open
    top, second, *body = reader.rows
    spans = [int(attributes.get("colspan", 1)) for _, attributes, _ in top]
    assert sum(spans) == len(second) + 2 == len(body[0]) == 8
    assert {len(row) for row in body} == {8}
    assert all("scope" in attributes for row in reader.rows for tag, attributes, _ in row if tag == "th")
    assert [row[0][2] for row in body] == list(result_table().rows)
    gcn, gat, failed = (row[2] for row in body[:3])
    assert (gcn[1]["class"], gat[1]["class"], failed[1]["class"]) == ("ours second", "ours best", "ours incomplete")
    assert gcn[1]["title"] == "results/LRGB/x, seeds 0 1 2; code abc1234; EPYC, 2 cores; 2026-01-02"
    assert body[0][3][2] == "61.00 ± 1.00a"


def test_notes_tell_kinds_of_deviation_settings_and_hardware() -> None:
    for name in ("md", "tex", "html"):
        text = FORMATS[name](result_table())
        assert "sample standard deviation (n - 1)" in text
        assert "the papers do not say which kind theirs is" in text
        assert "exact: " in text
        assert "our hardware: EPYC, 2 cores" in text
        assert "the paper&#x27;s hardware: a V100" in text.replace("paper's", "paper&#x27;s")
    assert "A note {in} 50 % of_cases." in FORMATS["md"](result_table())


@pytest.mark.parametrize("name", FORMATS)
def test_a_table_without_rows_can_be_written(name: str) -> None:
    text = FORMATS[name](result_table(rows={}, settings={}))
    assert name == "csv" or "Nothing to show yet: E has not run." in text
