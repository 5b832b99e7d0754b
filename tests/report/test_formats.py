"""One table in four formats: each can be read back."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from graphgps_kmip.experiments.printed_tables import PrintedCell
from graphgps_kmip.report.result_table import Cell, ResultTable
from graphgps_kmip.report.table_formats import FORMATS
from tests.report.example_tables import blocks, ours, result_table, sample_table


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


def test_long_notes_are_broken_to_the_width_of_the_lines() -> None:
    text = FORMATS["md"](result_table(notes=("word " * 50,)))
    assert max(map(len, text.splitlines())) <= 118
    assert "\n  word word" in text


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


@pytest.mark.parametrize("name", FORMATS)
def test_a_table_without_rows_can_be_written(name: str) -> None:
    text = FORMATS[name](result_table(rows={}, settings={}))
    assert name == "csv" or "Nothing to show yet: E has not run." in text
