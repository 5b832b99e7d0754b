"""A figure on paper: its files, title and provenance, and what is not drawn."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from graphgps_kmip.experiments.experiment_spec import FigureSpec
from graphgps_kmip.experiments.manifest import PrintedCell
from graphgps_kmip.experiments.run_status import State, Status
from graphgps_kmip.report.draw_figure import draw_figure
from graphgps_kmip.report.result_table import Cell, Ours
from tests.report.example_figures import EXPERIMENT, RUN, SPECS, TREE, tables, texts


@pytest.fixture
def out(tmp_path: Path) -> Path:
    facts = {"contestant": "ball_tree", "dim": 3, "k": 10, "leaf_size": 1, "repeats": 2}
    rows = [facts | {"part": "nodes", "n": n, "visited": 7 * math.log(n)} for n in (100, 1000, 10_000)]
    rows += [facts | {"part": "time", "n": n, "seconds": 1e-6 * n**1.5} for n in (1000, 3162, 10_000)]
    for sample in (False, True):
        folder = TREE.out_dir(EXPERIMENT.id, tmp_path, sample)
        folder.mkdir(parents=True)
        (folder / "tree.json").write_text(json.dumps({"rows": rows}))
        argv = TREE.sample if sample else TREE.run
        record = RUN.record | {"finished": True, "config_hash": argv, "sample": sample}
        (folder / "record.json").write_text(json.dumps(record))
    return tmp_path


def test_a_figure_is_a_png_and_a_pdf_which_is_the_same_file_for_the_same_numbers(out: Path) -> None:
    png, pdf = draw_figure(EXPERIMENT, SPECS["breakdown"], tables(), out)
    assert (png, pdf) == (out / "figures" / "T-1-f.png", out / "figures" / "T-1-f.pdf")
    assert png.read_bytes().startswith(b"\x89PNG")
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF")
    assert not list((out / "figures").glob("*.tmp"))
    assert draw_figure(EXPERIMENT, SPECS["breakdown"], tables(), out)[1].read_bytes() == content


@pytest.mark.parametrize("name", SPECS)
def test_every_drawing_function_draws(name: str, out: Path, seen: list[Figure]) -> None:
    draw_figure(EXPERIMENT, SPECS[name], tables(), out)
    assert any(axes.has_data() for axes in seen[0].axes)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    figures: list[Figure] = []
    saving = "graphgps_kmip.report.draw_figure.save"
    monkeypatch.setattr(saving, lambda figure, path, **_: figures.append(figure) or path)
    return figures


def test_title_and_provenance_are_around_and_a_sample_is_marked(out: Path, seen: list[Figure]) -> None:
    for name, sample in (("pareto", False), ("pareto", True), ("ball_tree_time", False)):
        paths = draw_figure(EXPERIMENT, SPECS[name], tables(), out, sample)
        assert paths[0].parent.name == ("figures-sample" if sample else "figures")
    real, marked, tree = (texts(figure) for figure in seen[::2])
    assert "An experiment" in real
    assert "SAMPLE" not in real
    assert "ours: A card, 2026-01-02, c0\npaper: an old card" in real
    assert {"SAMPLE", "SAMPLE, no result: An experiment"} <= set(marked)
    assert "ours: A card, 2026-01-02, c0" in tree
    assert any("N^{1.50}" in text for text in tree), "the fitted exponent"


def wrong(name: str, **changes: object) -> FigureSpec:
    return dataclasses.replace(SPECS[name], **changes)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (wrong("pareto", draw="paretto"), "T/1, figure f: no drawing function 'paretto'. Did you mean pareto"),
        (wrong("pareto", tables=("p/skore",)), "no table 'p/skore'. Did you mean p/score"),
        (wrong("pareto", options={"columns": ["B"]}), "figure f: what it draws holds no 'B'"),
        (wrong("ball_tree_time", sources=("treee/tree.json",)), "is no <command>/<file>. Did you mean tree"),
    ],
)
def test_what_is_missing_is_said_with_how_to_fix_it(spec: FigureSpec, message: str, out: Path) -> None:
    with pytest.raises(ValueError, match=message):
        draw_figure(EXPERIMENT, spec, tables(), out)


def test_a_table_without_a_number_of_ours_is_not_drawn(out: Path) -> None:
    rows = {"k=1": {"A": Cell(Ours(), PrintedCell("1", 1.0))}}
    empty = {key: dataclasses.replace(table, rows=rows) for key, table in tables().items()}
    with pytest.raises(ValueError, match=r"no number of ours in p/score, p/time: run it first .*run T/1 --sample"):
        draw_figure(EXPERIMENT, SPECS["pareto"], empty, out, sample=True)
    assert not (out / "figures-sample").exists()


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("record.json", {"config_hash": "run/x.py --old"}, r"tree is stale in .*run it first \(python .*run T/1\)"),
        ("record.json", {"finished": False}, "command tree is interrupted"),
        ("record.json", {"sample": True}, "tree holds a sample: move it away"),
        ("tree.json", {"rows": [{"part": "time"}]}, "figure f: what it draws holds no 'dim': make it again"),
    ],
)
def test_results_that_do_not_fit_are_not_drawn(file: str, changes: dict[str, object], message: str, out: Path) -> None:
    path = TREE.out_dir(EXPERIMENT.id, out) / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=message):
        draw_figure(EXPERIMENT, SPECS["ball_tree_time"], {}, out)


NOTHING = Ours(planned=2, unfinished={0: Status(State.MISSING, Path("nowhere"), {})})


@pytest.mark.parametrize(
    ("rows", "changes", "expected"),
    [
        (["k=2"], {"planned": 5}, "ours, of fewer runs than planned: k=2 on A (2 of 5)"),
        (["k=1", "k=2", "k=5"], {"planned": 5}, "ours, of fewer runs than planned: all (2 of 5)"),
        (["k=2"], vars(NOTHING), "p/score: no runs of k=2"),
    ],
)
def test_means_of_fewer_runs_than_planned_and_rows_without_a_run_are_named_below(
    rows: list[str], changes: dict[str, object], expected: str, out: Path, seen: list[Figure]
) -> None:
    drawn = tables()
    for row in rows:
        cell = drawn["p/score"].rows[row]["A"]
        drawn["p/score"].rows[row]["A"] = dataclasses.replace(cell, ours=dataclasses.replace(cell.ours, **changes))
    draw_figure(EXPERIMENT, SPECS["pareto"], drawn, out)
    assert any(expected in text for text in texts(seen[0]))
