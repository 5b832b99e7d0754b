"""The HTML page: self-contained, its tables parse, every number has an origin, and no sample is in it."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from graphgps_kmip.experiments.experiment_spec import Experiment, FigureSpec, TableSpec, Training
from graphgps_kmip.experiments.manifest import PrintedCell, PrintedTable
from graphgps_kmip.experiments.run_status import failure_file
from graphgps_kmip.report.report_page import write_page
from graphgps_kmip.report.result_table import Cell, Ours
from graphgps_kmip.report.table_formats import FORMATS
from tests.report.example_runs import tuned_table

COLUMNS = {"rings": {"metric": "accuracy", "better": "higher", "unit": "%"}}
PRINTED = {
    "paper/table1": PrintedTable(
        "paper/table1", "Rings", "a GPU", COLUMNS, {"GCN": {"rings": PrintedCell("50.0 ± 1.0", 50.0, 1.0, 5)}}
    )
}


def experiment(key: str, cfg: str) -> Experiment:
    training = Training({"dataset": "rings", "model": "GCN"}, cfg, seeds=(0, 1))
    table = TableSpec("paper/table1", scale={"rings": 100})
    return Experiment(
        key, f"Rings & <trees> {key}", settings={"default": "exact"}, trainings=(training,), tables={table.id: table}
    )


EXPERIMENTS = {key: experiment(key, f"rings/{name}.yaml") for key, name in (("A/1", "a"), ("B-2", "b"), ("C-3", "c"))}


def finished(folder: Path, score: float, sample: bool = False) -> None:
    folder.mkdir(parents=True)
    record = {
        "finished": True,
        "sample": sample,
        "config_hash": "abc123",
        "code_version": "v9-test",
        "finished_at": "2026-01-02T03:04:05+00:00",
        "hardware": {"cpu": "Abacus", "cores": 7},
        "wall_time": 90.0,
        "metric_best": "accuracy",
        "best": {"test": {"accuracy": score}},
    }
    (folder / "record.json").write_text(json.dumps(record))


class Reader(HTMLParser):
    """Collects tables as rows of cell texts, links and sources, and tells tags that do not match."""

    VOID = ("meta", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if name in ("href", "src") and value]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if any(tag in ("td", "th") for tag in self.open):
            self.tables[-1][-1][-1] += data


@pytest.fixture
def page(tmp_path: Path) -> Path:
    finished(tmp_path / "rings" / "a" / "0", 0.41)
    finished(tmp_path / "rings" / "a" / "1", 0.43)
    finished(tmp_path / "rings-sample" / "b" / "0", 0.98765, sample=True)
    return write_page(EXPERIMENTS, PRINTED, tmp_path, lambda _: "abc123")


def test_all_tags_are_closed_nothing_is_loaded_titles_are_escaped_and_no_sample_is_shown(page: Path) -> None:
    text, read = page.read_text(), Reader(page.read_text())
    assert read.open == []
    assert len(read.tables) == 5  # overview, results, origins; folded: what is printed of the others
    assert text.index('id="A-1"') < text.index("2 experiments without results") < text.index("<summary>C-3: Rings")
    assert all(link.startswith(("#", "data:")) for link in read.links)
    assert "@import" not in text
    assert "Rings &amp; &lt;trees&gt; A/1" in text
    assert re.search(r"sample data only.*B-2", text, re.S)
    assert "prefers-color-scheme: dark" in text
    for absent in ("98.8", "0.98765", 'id="B-2"', 'id="C-3"'):
        assert absent not in text


def test_tables_say_what_is_done_our_mean_next_to_the_printed_one_and_the_origin_of_each_run(page: Path) -> None:
    overview, results, sources, *others = Reader(page.read_text()).tables
    assert [row[1].strip() for row in overview[1:]] == ["2 of 2"]
    assert [other[1] for other in others] == [["GCN", "50.0 ± 1.0"]] * 2
    row = " ".join(next(row for row in results if "GCN" in row[0]))
    assert re.search(r"42\.0 ± 1\.4", row)
    assert "50.0 ± 1.0" in row
    assert [(row[2], row[3]) for row in sources[1:]] == [("seed 0", "41"), ("seed 1", "43")]
    assert sources[1][4:9] == ["abc123", "v9-test", "Abacus, 7 cores", "2026-01-02 03:04", "1.5"]


def test_the_time_of_runs_that_two_experiments_share_is_counted_once(page: Path) -> None:
    twice = EXPERIMENTS | {"A/2": dataclasses.replace(EXPERIMENTS["A/1"], id="A/2")}
    text = write_page(twice, PRINTED, page.parent, lambda _: "abc123").read_text()
    assert "from 2 finished runs (3 min in all)" in text
    assert [row[2] for row in Reader(text).tables[0][1:]] == ["3 min", "3 min"]


def test_failed_runs_are_listed_with_reason_and_log_also_where_nothing_else_is_done(page: Path) -> None:
    failed = page.parent / "rings" / "c" / "1"
    failed.parent.mkdir()
    content = {"config_hash": "abc123", "exit_code": 1, "error": "no <memory>", "log": "logs/c-1.log"}
    failure_file(failed).write_text(json.dumps(content))
    text = write_page(EXPERIMENTS, PRINTED, page.parent, lambda _: "abc123").read_text()
    section = text[text.index('<section id="C-3">') :]
    for part in ("<code>rings/c/1</code>", "failed</span>: no &lt;memory&gt;", "<code>logs/c-1.log</code>"):
        assert part in section


def test_a_figure_is_in_the_page_or_why_it_is_not_and_tables_of_members_are_shown_once(page: Path) -> None:
    stages = {"stages": {"rings": "rings"}}
    bars = FigureSpec("bars", "breakdown", "Bars & <stages>", ("paper/table1",), options=stages)
    lost = FigureSpec("lost", "breakdown", tables=("paper/table9",))
    first = dataclasses.replace(EXPERIMENTS["A/1"], figures={"bars": bars, "lost": lost})
    every = dataclasses.replace(bars, title="All bars")
    both = Experiment("D", "Both", of=("A/1",), trainings=first.trainings, figures={"bars": every})
    text = write_page({"A/1": first, "D": both}, PRINTED, page.parent, lambda _: "abc123").read_text()
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)" alt="Bars &amp; &lt;stages&gt;"', text)
    assert base64.b64decode(data).startswith(b"\x89PNG")
    assert "Not drawn: A/1, figure lost: no table &#39;paper/table9&#39;" in text
    assert 'alt="All bars"' in text[text.index('<section id="D">') :]
    assert sum("50.0 ± 1.0" in " ".join(row) for table in Reader(text).tables for row in table) == 1


def test_pairs_of_rows_are_in_columns_and_large_numbers_have_separators() -> None:
    table = tuned_table()
    sizes = {row: {**cells, "parameters": Cell(Ours((40_426.0,), (0,), 1))} for row, cells in table.rows.items()}
    columns = {**table.columns, "parameters": {"ranked": False}}
    content = FORMATS["html"](dataclasses.replace(table, rows=sizes, columns=columns))
    scores, pairs = Reader(content).tables
    assert "40,426" in scores[2]
    assert pairs[0][1:] == ["difference", "95 % interval", "p"]
    assert [row[0] for row in pairs[1:]] == ["GCN - GAT", "GCN - kMIP"]
    assert re.fullmatch(r"\[\S+, \S+\]", pairs[1][2])
    assert 0 < float(pairs[1][3]) <= 1
    assert "GCN - kMIP" not in content.partition('<ul class="notes">')[2], "not in a note, too"
