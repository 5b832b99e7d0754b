"""Figures of score over time: Pareto frontier over k, and models as points.

Thesis, figure 6.5, and k-MIP paper, figure 9 (frontier); k-MIP paper, figure 4 (models). One panel for each data set;
ours filled, the paper's open; labels are placed where they cover the least.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report.learning_curves import FAINT, INK, PALETTE, logarithmic, series_style, tidy
from graphgps_kmip.report.result_table import Cell, ResultTable

Point = tuple[float, float]  # time, score
Label = tuple[float, float, str, str]  # x, y, text, colour

PANEL = (3.5, 3.1)  # inches
MAX_IN_A_ROW = 3
LABELLED = 10  # so many names find places beside their points
# The paper's points first, below ours. Names are those of `Cell`'s means.
FRONTIERS = {
    "paper_mean": {"color": PALETTE[1], "fillstyle": "none", "markersize": 6, "markeredgewidth": 1.2},
    "our_mean": {"color": PALETTE[0], "markeredgecolor": "white", "markersize": 7},
}
MODELS = {
    "paper_mean": {"fillstyle": "none", "markeredgewidth": 1.1, "markersize": 6.5},
    "our_mean": {"markeredgecolor": "white", "markeredgewidth": 0.5, "markersize": 8},
}
# Where a label may be, in points from its marker, the nearest places first: of a ring of eight, and of three wider.
PLACES = [
    (x * gap, y * gap * 0.9)
    for gap in (6, 11, 18, 27)
    for x, y in ((1, 0), (0.7, 0.9), (0.7, -0.9), (-1, 0), (-0.7, 0.9), (-0.7, -0.9), (0, 1.1), (0, -1.1))
]
NARROW = 3  # times that span less have a linear axis: a logarithmic one has no round numbers to write there
FAR = 12  # points; a label further away gets a thin line to its marker


def draw_pareto(tables: Mapping[str, ResultTable], options: Mapping[str, Any]) -> Figure:
    """Draw one panel for each column: a point for each row, and as steps those that no other beats in both.

    Args:
        tables: two, with the same rows (``k=10``) and columns (data sets): first the scores, then the times.
        options: ``columns``: those that are drawn (default: all); ``time``: what the times are (default: the metric).
    """
    scores, times = tables.values()
    figure, drawn = _panels(scores, times, options)
    labels: dict[Axes, list[Label]] = {}
    for column, axes in drawn.items():
        logarithmic(axes)
        higher = scores.columns[column].get("better") != "lower"
        labels[axes] = []
        for which, look in FRONTIERS.items():
            points = _points(scores, times, column, which)
            _draw(axes, points, look, higher)
            labels[axes] += [(x, y, row.removeprefix("k="), look["color"]) for row, (x, y) in points.items()]
        for row in scores.rows:
            _whisker(axes, times.rows.get(row, {}).get(column), scores.rows[row][column])
        axes.margins(x=0.1, y=0.12)
    more = [Line2D([], [], color=INK, linewidth=1.2, label="Pareto frontier")]
    if all(row.startswith("k=") for row in scores.rows):
        more.append(Line2D([], [], marker="$10$", color=INK, markersize=9, linestyle="", label="k"))
    _legend(figure, tables, *more)
    _place_labels(figure, labels, fontsize=7.5)
    return figure


def frontier(points: list[Point], higher: bool = True) -> list[Point]:
    """Return the points that no other one beats: as fast and better, or faster and as good; by time."""
    sign = 1 if higher else -1
    kept: list[Point] = []
    for x, y in sorted(points, key=lambda point: (point[0], -sign * point[1])):
        if not kept or sign * y > sign * kept[-1][1]:
            kept.append((x, y))
    return kept


def _points(scores: ResultTable, times: ResultTable, column: str, which: str) -> dict[str, Point]:
    pairs = {
        row: (getattr(times.rows[row][column], which), getattr(scores.rows[row][column], which))
        for row in scores.rows
        if row in times.rows
    }
    return {row: pair for row, pair in pairs.items() if None not in pair}


def _draw(axes: Axes, points: Mapping[str, Point], look: dict[str, Any], higher: bool) -> None:
    best = frontier(list(points.values()), higher)
    if best:
        corners = [(x, y) for (_, y), (x, _) in itertools.pairwise(best)]
        steps = [*itertools.chain(*zip(best, corners, strict=False)), best[-1]]
        axes.plot(*zip(*steps, strict=True), color=look["color"], linewidth=1.2, alpha=0.8)
        axes.plot(*zip(*points.values(), strict=True), marker="o", linestyle="", **look)


def _whisker(axes: Axes, time: Cell | None, score: Cell) -> None:
    if time is not None and time.our_mean is not None and score.our_spread:
        axes.errorbar([time.our_mean], [score.our_mean], yerr=score.our_spread, color=FAINT, linewidth=0.8, zorder=1)


def draw_time_against_score(tables: Mapping[str, ResultTable], options: Mapping[str, Any]) -> Figure:
    """Draw one panel for each column: models as points, ours filled, the paper's open.

    Up to `LABELLED` models have their names beside the points, more have them in the legend.

    Args:
        tables: two, with the same rows (models) and columns (data sets): first the scores, then the times.
        options: ``columns``: those that are drawn (default: all); ``time``: what the times are (default: the metric);
            ``across``: panels in a line (default: 3, and 2 of 4).
    """
    scores, times = tables.values()
    figure, drawn = _panels(scores, times, options)
    styles = {row: series_style(place) for place, row in enumerate(row for row in scores.rows if row in times.rows)}
    labels: dict[Axes, list[Label]] = {}
    for column, axes in drawn.items():
        labels[axes] = []
        for row, style in styles.items():
            score = scores.rows[row][column]
            points = [
                point for which in MODELS if (point := _point(axes, times.rows[row][column], score, which, style))
            ]
            axes.plot(*zip(*points, strict=True), color=FAINT, linewidth=0.7, zorder=1) if len(points) > 1 else None
            labels[axes] += [(*point, row, style["color"]) for point in points[-1:]]
            if score.our_spread and points:
                axes.errorbar(*points[-1], yerr=score.our_spread, color=style["color"], linewidth=1, zorder=1)
        axes.margins(x=0.16, y=0.14)
        low, high = axes.dataLim.intervalx
        if high > NARROW * low:
            logarithmic(axes)
    if len(styles) <= LABELLED:
        _legend(figure, tables)
        _place_labels(figure, labels)
    else:
        ours = MODELS["our_mean"]
        shown = {row for panel in labels.values() for _, _, row, _ in panel}
        named = {row: style for row, style in styles.items() if row in shown}
        _legend(
            figure, tables, *(Line2D([], [], linestyle="", label=row, **style, **ours) for row, style in named.items())
        )
    return figure


def _point(axes: Axes, time: Cell, score: Cell, which: str, style: dict[str, str]) -> tuple[float, float] | None:
    """Draw the point of one model, ours or the paper's, and return it; None where one of its numbers is missing."""
    x, y = getattr(time, which), getattr(score, which)
    if x is None or y is None:
        return None
    axes.plot([x], [y], linestyle="", **style, **MODELS[which])
    return x, y


def _panels(scores: ResultTable, times: ResultTable, options: Mapping[str, Any]) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure and an empty panel for each column that holds a point.

    Raises:
        ValueError: an option names a column that the tables do not have.
    """
    wanted = options.get("columns", list(scores.columns))
    for column in wanted:
        if column not in scores.columns or column not in times.columns:
            raise ResultsError(
                f"columns: no {column!r} in both {scores.id} and {times.id}.{suggest(column, scores.columns)}"
            )
    wanted = [column for column in wanted if any(_has_point(scores, times, row, column) for row in scores.rows)]
    if not wanted:
        raise ResultsError(f"no row of {scores.id} has a score and, in {times.id}, a time: finish its runs first")
    across = min(len(wanted), options.get("across", 2 if len(wanted) == 4 else MAX_IN_A_ROW))
    down = -(-len(wanted) // across)
    figure = Figure(figsize=(PANEL[0] * across, PANEL[1] * down + 0.3), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).flat
    for axes in grid[len(wanted) :]:
        axes.remove()
    drawn = dict(zip(wanted, grid, strict=False))
    for place, (column, axes) in enumerate(drawn.items()):
        tidy(axes)
        axes.tick_params(labelsize=8, which="both")
        score, time = scores.columns[column], times.columns[column]
        axes.set_title(column, fontsize=9.5, color=INK)
        axes.set_ylabel(_with_unit(score.get("metric", "score"), score), fontsize=8.5, color=INK)
        if place >= len(drawn) - across:
            axes.set_xlabel(_with_unit(options.get("time", time.get("metric", "time")), time), fontsize=8.5, color=INK)
    return figure, drawn


def _legend(figure: Figure, tables: Mapping[str, ResultTable], *more: Line2D) -> None:
    """Add the legend: ours and the paper's points, or those of the two that are drawn, and what else is given."""
    cells = [cell for table in tables.values() for row in table.rows.values() for cell in row.values()]
    grey = {"color": INK, "marker": "o", "linestyle": ""}
    papers = any(cell.paper_mean is not None for cell in cells)
    handles = [Line2D([], [], label="paper", fillstyle="none", **grey)] if papers else []
    if any(cell.our_mean is not None for cell in cells) and (papers or not more):
        handles.insert(0, Line2D([], [], label="ours", **grey))
    handles += more
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(handles), 5),
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
    )


def _has_point(scores: ResultTable, times: ResultTable, row: str, column: str) -> bool:
    if row not in times.rows:
        return False
    pair = scores.rows[row][column], times.rows[row][column]
    return any(all(getattr(cell, which) is not None for cell in pair) for which in MODELS)


def _with_unit(name: str, column: Mapping[str, Any]) -> str:
    return f"{name} ({column['unit']})" if column.get("unit") else name


def _place_labels(figure: Figure, labels: Mapping[Axes, Iterable[Label]], fontsize: float = 8) -> None:
    """Write labels beside their points, where they cover the least: points, each other, lines.

    It is the last that is drawn: the layout of the figure is settled here, for the places depend on it.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    renderer = FigureCanvasAgg(figure).get_renderer()
    for axes, wanted in labels.items():
        taken = _marks(axes, 4 * figure.dpi / 72)
        for x, y, text, color in wanted:
            label = axes.annotate(text, (x, y), (0, 0), textcoords="offset points", fontsize=fontsize, color=color)
            best = min(PLACES, key=lambda place: _cost(label, place, axes, taken, renderer))  # noqa: B023, used at once
            _move(label, best)
            if max(map(abs, best)) > FAR:
                line = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
                axes.annotate("", (x, y), best, textcoords="offset points", arrowprops=line)
            # text is a little wider at another resolution
            taken.append(label.get_window_extent(renderer).padded(2))


def _cost(
    label: Annotation, place: tuple[float, float], axes: Axes, taken: list[Bbox], renderer: RendererBase
) -> float:
    """Return the cost of a place: what it covers, lines at the lowest weight, and then its distance."""
    _move(label, place)
    box, frame = label.get_window_extent(renderer), axes.get_window_extent()
    frame = frame.padded(-2)
    inside = frame.x0 < box.x0 and box.x1 < frame.x1 and frame.y0 < box.y0 and box.y1 < frame.y1
    covered = sum(box.overlaps(other) for other in taken)
    crossed = sum(
        line.get_transform().transform_path(line.get_path()).intersects_bbox(box, filled=False)
        for line in axes.lines
        if line.get_linestyle() != "None"
    )
    return 10 * covered + 20 * (not inside) + 4 * crossed + 0.3 * PLACES.index(place)


def _move(label: Annotation, place: tuple[float, float]) -> None:
    x, y = place
    label.set_position(place)
    label.set_ha("left" if x > 0 else "right" if x < 0 else "center")
    label.set_va("center" if y == 0 else "bottom" if y > 0 else "top")


def _marks(axes: Axes, half: float) -> list[Bbox]:
    """Return the boxes of all markers, in pixels."""
    drawn = [line.get_xydata() for line in axes.lines if line.get_marker() != "None"]
    points = [axes.transData.transform(point) for data in drawn for point in data]
    return [Bbox.from_extents(x - half, y - half, x + half, y + half) for x, y in points]
