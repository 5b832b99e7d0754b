"""Figures of experiments: every drawing function draws from small tables, and what is missing is said in one line."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from graphgps_kmip.experiments.printed import PrintedCell
from graphgps_kmip.experiments.records import Command, Experiment, FigureSpec
from graphgps_kmip.experiments.state import State, Status
from graphgps_kmip.report.figures import draw_figure
from graphgps_kmip.report.figures.ball_tree import draw_time
from graphgps_kmip.report.figures.breakdown import draw_breakdown
from graphgps_kmip.report.figures.pareto import draw_pareto, frontier
from graphgps_kmip.report.figures.runtimes import draw_runtimes
from graphgps_kmip.report.figures.time_against_score import draw_time_against_score
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable

TREE = Command("tree", "run/x.py", "run/x.py", ("tree.json",))
EXPERIMENT = Experiment("T/1", "An experiment", commands={"tree": TREE})
RUN = Status(
    State.DONE, Path("a/0"), {"hardware": {"gpu": "A card"}, "finished_at": "2026-01-02", "code_version": "c0"}
)
SIZES = ("N=10^2.0", "N=10^3.0", "N=10^4.0", "N=10^5.0", "N=10^6.0")
STAGES = {"search": "search", "backward": "backward"}
PANELS = {"time": {"ours and theirs": ["p/sizes", "total"], "another": ["p/sizes", "other"]}}


def table(key: str, columns: Mapping[str, dict], rows: Mapping[str, list[Cell]]) -> ResultTable:
    cells = {row: dict(zip(columns, values, strict=True)) for row, values in rows.items()}
    return ResultTable(key, key, "T/1", columns, cells, {}, printed_hardware="an old card")


def cell(ours: float | str | None, printed: float | str | None = None) -> Cell:
    mine = Ours(text=ours) if isinstance(ours, str) else Ours((ours, ours * 1.1), (0, 1), 2, {}, {0: RUN, 1: RUN})
    paper = PrintedCell(printed) if isinstance(printed, str) else PrintedCell(str(printed), printed)
    return Cell(mine, None if printed is None else paper)


def tables() -> dict[str, ResultTable]:
    score, time = {"metric": "accuracy", "better": "higher", "unit": "%"}, {"metric": "time", "unit": "s"}
    sizes = {
        name: [cell(10.0 * 4**i, 20.0 * 4**i), cell(4.0 * 9**i if i < 3 else "OOM", "OOM" if i > 1 else 5.0 * 9**i)]
        for i, name in enumerate(SIZES)
    }
    return {
        "p/sizes": table("p/sizes", {"total": {"unit": "ms"}, "other": {"unit": "ms"}}, sizes),
        "p/stages": table(
            "p/stages", dict.fromkeys(STAGES, {}), {"full": [cell(9.0), cell(30.0)], "k-MIP": [cell(2.0), cell(0.1)]}
        ),
        "p/score": table("p/score", {"A": score}, {f"k={k}": [cell(70.0 + k, 69.0 + k)] for k in (1, 2, 5)}),
        "p/time": table("p/time", {"A": time}, {f"k={k}": [cell(1.0 + k, 2.0 * k)] for k in (1, 2, 5)}),
    }


SPECS = {
    "runtimes": FigureSpec("f", "runtimes", tables=("p/sizes",), options={"panels": PANELS}),
    "breakdown": FigureSpec("f", "breakdown", tables=("p/stages",), options={"stages": STAGES}),
    "time_against_score": FigureSpec("f", "time_against_score", tables=("p/score", "p/time")),
    "pareto": FigureSpec("f", "pareto", tables=("p/score", "p/time")),
    "ball_tree_nodes": FigureSpec("f", "ball_tree_nodes", sources=("tree/tree.json",)),
    "ball_tree_time": FigureSpec("f", "ball_tree_time", sources=("tree/tree.json",)),
}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A root of results in which the command has run, and its sample."""
    common = {"contestant": "ball_tree", "dim": 3, "k": 10, "leaf_size": 1, "repeats": 2}
    rows = [common | {"part": "nodes", "n": n, "visited": 7 * math.log(n)} for n in (100, 1000, 10_000)]
    rows += [common | {"part": "time", "n": n, "seconds": 1e-6 * n**1.5} for n in (1000, 3162, 10_000)]
    for sample in (False, True):
        folder = TREE.out_dir(EXPERIMENT.id, tmp_path, sample)
        folder.mkdir(parents=True)
        (folder / "tree.json").write_text(json.dumps({"rows": rows}))
        (folder / "record.json").write_text(json.dumps(RUN.record))
    return tmp_path


def texts(figure: Figure) -> list[str]:
    """All words of a figure: its own, of its panels, and of the legends."""
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    found = [text for one in (figure, *figure.axes) for text in one.texts]
    return [text.get_text() for text in (*found, *(text for legend in legends for text in legend.get_texts()))]


@pytest.mark.parametrize("name", SPECS)
def test_every_drawing_function_writes_png_and_pdf(name: str, out: Path) -> None:
    written = draw_figure(EXPERIMENT, SPECS[name], tables(), out)
    assert written == [out / "figures" / "T-1-f.png", out / "figures" / "T-1-f.pdf"]
    assert written[0].read_bytes().startswith(b"\x89PNG")
    assert written[1].read_bytes().startswith(b"%PDF")
    assert not list((out / "figures").glob("*.tmp"))


def test_a_pdf_of_the_same_numbers_is_the_same_file(out: Path) -> None:
    first = draw_figure(EXPERIMENT, SPECS["breakdown"], tables(), out)[1].read_bytes()
    assert b"CreationDate" not in first
    assert draw_figure(EXPERIMENT, SPECS["breakdown"], tables(), out)[1].read_bytes() == first


def test_title_and_provenance_stand_around_and_a_sample_is_marked(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Figure] = []
    monkeypatch.setattr("graphgps_kmip.report.figures.save", lambda figure, path, **_: seen.append(figure) or path)
    for name, sample in (("pareto", False), ("pareto", True), ("ball_tree_time", False)):
        paths = draw_figure(EXPERIMENT, SPECS[name], tables(), out, sample)
        assert paths[0].parent.name == ("figures-sample" if sample else "figures")
    real, marked, tree = (texts(figure) for figure in seen[::2])
    assert "An experiment" in real
    assert "SAMPLE" not in real
    assert "ours: A card, 2026-01-02, c0\npaper: an old card" in real
    assert {"SAMPLE", "SAMPLE, no result: An experiment"} <= set(marked)
    assert "ours: A card, 2026-01-02, c0" in tree


def test_runtimes_mark_where_memory_ran_out_of_ours_and_of_the_paper() -> None:
    figure = draw_runtimes({"p/sizes": tables()["p/sizes"]}, {}, {"panels": PANELS})
    (axes,) = figure.axes
    assert [text.xy for text in axes.texts] == [(1000, 45.0), (10_000, pytest.approx(324 * 1.05))]
    assert {"ours", "paper", "then out of memory"} <= set(texts(figure))
    assert any("N^{0.60}" in text for text in texts(figure))  # times 4 for each power of ten


def test_runtimes_without_a_printed_number_show_no_paper() -> None:
    bare = table("p/sizes", {"total": {}, "other": {}}, {"N=10^2.0": [cell(1.0), cell(2.0)]})
    assert set(texts(draw_runtimes({"p/sizes": bare}, {}, {"panels": PANELS}))) == {"ours and theirs", "another"}


def test_stages_are_stacked_and_quick_bars_are_drawn_again_enlarged() -> None:
    left, right = draw_breakdown({"p/stages": tables()["p/stages"]}, {}, {"stages": STAGES}).axes
    assert [bar.get_y() + bar.get_height() for bar in left.containers[1]] == pytest.approx([39 * 1.05, 2.1 * 1.05])
    assert [label.get_text() for label in right.get_xticklabels()] == ["k-MIP"]


def test_the_frontier_is_what_no_other_point_beats() -> None:
    points = [(1.0, 5.0), (2.0, 4.0), (3.0, 7.0), (1.0, 6.0), (3.5, 7.0)]
    assert frontier(points) == [(1.0, 6.0), (3.0, 7.0)]
    assert frontier(points, higher=False) == [(1.0, 5.0), (2.0, 4.0)]


@pytest.mark.parametrize("draw", [draw_pareto, draw_time_against_score])
def test_labels_cover_neither_points_nor_each_other(draw: type) -> None:
    close = {
        f"GPS+{name}": [cell(70 + 0.2 * i, 70.1 + 0.2 * i)] for i, name in enumerate(("GCN", "GAT", "GINE", "kMIP"))
    }
    score = table("p/score", tables()["p/score"].columns, close)
    time = table(
        "p/time", tables()["p/time"].columns, {name: [cell(1 + i / 9, 1.2 + i / 9)] for i, name in enumerate(close)}
    )
    figure = draw({"p/score": score, "p/time": time}, {}, {})
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
    assert len(boxes) >= 4
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    marks = [
        axes.transData.transform(p) for line in axes.lines if line.get_marker() != "None" for p in line.get_xydata()
    ]
    assert not any(box.contains(*mark) for box in boxes for mark in marks)


def test_the_tree_is_drawn_with_its_fitted_exponent(out: Path) -> None:
    path = TREE.out_dir(EXPERIMENT.id, out) / "tree.json"
    assert any("N^{1.50}" in text for text in texts(draw_time({}, {"tree/tree.json": path}, {})))


def wrong(name: str, **changes: object) -> FigureSpec:
    return dataclasses.replace(SPECS[name], **changes)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (wrong("pareto", draw="paretto"), "T/1, figure f: no drawing function 'paretto'. Did you mean pareto"),
        (wrong("pareto", tables=("p/skore",)), "no table 'p/skore'. Did you mean p/score"),
        (wrong("pareto", options={"columns": ["B"]}), "columns: no 'B' in both p/score and p/time. Allowed: A"),
        (wrong("breakdown", options={"stages": {"nap": "nap"}}), "stages: p/stages has no column nap"),
        (wrong("runtimes", options={"panels": {"t": {"a": ["p/sizes", "x"]}}}), "panel 't': no column 'x' of"),
        (wrong("ball_tree_time", sources=("treee/tree.json",)), "is no <command>/<file>. Did you mean tree"),
        (wrong("ball_tree_time", sources=("tree/no.json",)), r"no.json does not exist: .*reproduce.py run T/1\)"),
    ],
)
def test_what_is_missing_is_said_with_the_mend(spec: FigureSpec, message: str, out: Path) -> None:
    with pytest.raises(ValueError, match=message):
        draw_figure(EXPERIMENT, spec, tables(), out)


def test_a_table_without_a_number_of_ours_is_not_drawn(out: Path) -> None:
    empty = {
        key: dataclasses.replace(one, rows={"k=1": {"A": Cell(Ours(), PrintedCell("1", 1.0))}})
        for key, one in tables().items()
    }
    with pytest.raises(ValueError, match=r"no number of ours in p/score, p/time: run it first .*run T/1 --sample"):
        draw_figure(EXPERIMENT, SPECS["pareto"], empty, out, sample=True)
    assert not (out / "figures-sample").exists()
