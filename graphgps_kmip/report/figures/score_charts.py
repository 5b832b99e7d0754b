"""Charts of scores: Pareto frontier over k, models by score and time or memory, ablations, batch sizes, peak memory.

Thesis, figure 6.5; k-MIP paper, figures 4 and 9; PPGT paper, figures 4 and 6; low-width paper, figure 3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report import learning_curves as plot
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable

Point = tuple[float, float]  # time, score
Label = tuple[float, float, str, Mapping[str, Any]]  # x, y, text, look

PANEL = (3.5, 3.1)  # inches
MAX_IN_A_ROW = 3
COST_PANEL = (3.6, 3.2)  # inches
HIGHLIGHTED = {  # models with k-MIP
    "marker": {"color": plot.PALETTE[1], "markersize": 8, "zorder": 4},
    "label": {"color": plot.PALETTE[1], "fontweight": "bold"},
}
MUTED = {"marker": {"color": plot.FAINT, "markersize": 6, "zorder": 3}, "label": {"color": "#57606A"}}
# The paper's points first, below ours. Names are those of `Cell`'s means.
FRONTIERS = {
    "paper_mean": {"color": plot.PALETTE[1], "fillstyle": "none", "markersize": 6, "markeredgewidth": 1.2},
    "our_mean": {"color": plot.PALETTE[0], "markeredgecolor": "white", "markersize": 7},
}
MODELS = {
    "paper_mean": {"fillstyle": "none", "markeredgewidth": 1.1, "markersize": 6.5},
    "our_mean": {"markeredgecolor": "white", "markeredgewidth": 0.5, "markersize": 8},
}
# Where a label may be, in points from its marker, the nearest places first: on a ring of eight, then on wider ones.
PLACES = [
    (x * gap, y * gap * 0.9)
    for gap in (6, 11, 18, 27, 38, 50)
    for x, y in ((1, 0), (0.7, 0.9), (0.7, -0.9), (-1, 0), (-0.7, 0.9), (-0.7, -0.9), (0, 1.1), (0, -1.1))
]
NARROW = 3  # times that span less have a linear axis: a logarithmic one has no round numbers to write there
FAR = 12  # points; a label further away gets a thin line to its marker
COSTS = {"epoch_seconds": "time of an epoch", "memory_mb": "peak memory"}  # kind of value -> name


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
        plot.logarithmic(axes)
        higher = scores.columns[column].get("better") != "lower"
        labels[axes] = []
        for which, look in FRONTIERS.items():
            points = _points(scores, times, column, which)
            if best := frontier(list(points.values()), higher):
                corners = [(x, y) for (_, y), (x, _) in itertools.pairwise(best)]
                steps = [*itertools.chain(*zip(best, corners, strict=False)), best[-1]]
                axes.plot(*zip(*steps, strict=True), color=look["color"], linewidth=1.2, alpha=0.8)
                axes.plot(*zip(*points.values(), strict=True), marker="o", linestyle="", **look)
            labels[axes] += [(x, y, row.removeprefix("k="), {"color": look["color"]}) for row, (x, y) in points.items()]
        for row, cells in scores.rows.items():
            time, score = times.rows.get(row, {}).get(column, Cell()), cells[column]
            if time.our_mean is not None and score.our_spread:
                place = [time.our_mean], [score.our_mean]
                axes.errorbar(*place, yerr=score.our_spread, color=plot.FAINT, linewidth=0.8, zorder=1)
        axes.margins(x=0.1, y=0.12)
    more = [Line2D([], [], color=plot.INK, linewidth=1.2, label="Pareto frontier")]
    if all(row.startswith("k=") for row in scores.rows):
        more.append(Line2D([], [], marker="$10$", color=plot.INK, markersize=9, linestyle="", label="k"))
    _legend(figure, tables, *more)
    _place_labels(figure, labels, fontsize=7.5)
    return figure


def frontier(points: list[Point], higher: bool = True) -> list[Point]:
    """Return the points that no other one beats: as fast and better, or faster and as good; by time."""
    sign = 1 if higher else -1
    best: list[Point] = []
    for x, y in sorted(points, key=lambda point: (point[0], -sign * point[1])):
        if not best or sign * y > sign * best[-1][1]:
            best.append((x, y))
    return best


def _points(scores: ResultTable, times: ResultTable, column: str, which: str) -> dict[str, Point]:
    """Return row -> time and score of the rows that have both, ours or the paper's by the name of the mean."""
    pairs = {
        row: (getattr(times.rows[row][column], which), getattr(cells[column], which))
        for row, cells in scores.rows.items()
        if row in times.rows
    }
    return {row: pair for row, pair in pairs.items() if None not in pair}


def draw_time_against_score(tables: Mapping[str, ResultTable], options: Mapping[str, Any]) -> Figure:
    """Draw one panel for each column: models as points, ours filled, the paper's open, with their names.

    Args:
        tables: two, with the same rows (models) and columns (data sets): first the scores, then the times.
        options: ``columns``: those that are drawn (default: all); ``time``: what the times are (default: the metric);
    """
    scores, times = tables.values()
    figure, drawn = _panels(scores, times, options)
    styles = {
        row: plot.series_style(place) for place, row in enumerate(row for row in scores.rows if row in times.rows)
    }
    labels: dict[Axes, list[Label]] = {}
    for column, axes in drawn.items():
        labels[axes] = []
        both = {which: _points(scores, times, column, which) for which in MODELS}
        for row, style in styles.items():
            points = {which: model_points[row] for which, model_points in both.items() if row in model_points}
            for which, (x, y) in points.items():
                axes.plot([x], [y], linestyle="", **style, **MODELS[which])
            places, spread = list(points.values()), scores.rows[row][column].our_spread
            if len(places) > 1:
                axes.plot(*zip(*places, strict=True), color=plot.FAINT, linewidth=0.7, zorder=1)
            labels[axes] += [(*place, row, {"color": style["color"]}) for place in places[-1:]]
            if spread and places:
                axes.errorbar(*places[-1], yerr=spread, color=style["color"], linewidth=1, zorder=1)
        axes.margins(x=0.16, y=0.14)
        low, high = axes.dataLim.intervalx
        if high > NARROW * low:
            plot.logarithmic(axes)
    _legend(figure, tables)
    _place_labels(figure, labels)
    return figure


def _panels(scores: ResultTable, times: ResultTable, options: Mapping[str, Any]) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure and an empty panel for each column that holds a point."""
    columns = options.get("columns", scores.columns)
    columns = [column for column in columns if any(_points(scores, times, column, which) for which in MODELS)]
    if not columns:
        raise ResultsError(f"no row of {scores.id} has a score and, in {times.id}, a time: finish its runs first")
    across = min(len(columns), 2 if len(columns) == 4 else MAX_IN_A_ROW)
    down = -(-len(columns) // across)
    figure, grid = plot.new_panels(PANEL[0] * across, PANEL[1] * down + 0.3, down, across, squeeze=False)
    grid = grid.flat
    for axes in grid[len(columns) :]:
        axes.remove()
    drawn = dict(zip(columns, grid, strict=False))
    for place, (column, axes) in enumerate(drawn.items()):
        plot.tidy(axes)
        axes.tick_params(labelsize=8, which="both")
        score, time = scores.columns[column], times.columns[column]
        names = options.get("time", time.get("metric", "time")), score.get("metric", "score")
        x, y = (
            f"{name} ({facts['unit']})" if facts.get("unit") else name
            for name, facts in zip(names, (time, score), strict=True)
        )
        plot.label(axes, x if place >= len(drawn) - across else "", y, size=8.5)
        plot.label(axes, title=column, size=9.5)
    return figure, drawn


def _legend(figure: Figure, tables: Mapping[str, ResultTable], *more: Line2D) -> None:
    """Add the legend: ours and the paper's points, as far as they are drawn, and `more`."""
    cells = [cell for table in tables.values() for *_, cell in table.places()]
    grey = {"color": plot.INK, "marker": "o", "linestyle": ""}
    papers = any(cell.paper_mean is not None for cell in cells)
    handles = [Line2D([], [], label="paper", fillstyle="none", **grey)] if papers else []
    if any(cell.our_mean is not None for cell in cells) and (papers or not more):
        handles.insert(0, Line2D([], [], label="ours", **grey))
    handles += more
    figure.legend(handles=handles, ncols=min(len(handles), 5), **plot.LEGEND_BELOW)


def draw_score_against_cost(tables: Mapping[str, ResultTable]) -> Figure:
    """Draw a panel for each cost of each data set that has three models: our complete models, with their names.

    Panels of one cost, or of the only data set, are side by side. Models with k-MIP have a colour and a line to the
    model without it, all others are grey.

    Args:
        tables: with columns ``<data set> score`` and ``<data set> epoch_seconds`` or ``<data set> memory_mb``.
    """
    owners = {column: table for table in tables.values() for column in table.columns}
    names = [column.removesuffix(" score") for column in owners if column.endswith(" score")]
    drawn = {
        (name, cost): rows
        for cost in COSTS
        for name in names
        if (table := owners[f"{name} score"]) is owners.get(f"{name} {cost}")
        and len(rows := _complete_rows(table, name, cost)) > 2  # two are two lines of the table
    }
    if not drawn:
        raise ResultsError(
            f"{', '.join(tables)}: no data set has three models with all runs of a score and of {' or '.join(COSTS)}"
        )
    names, costs = (list(dict.fromkeys(parts)) for parts in zip(*drawn, strict=True))
    lines, across = (len(costs), len(names)) if len(names) > 1 else (1, len(costs))
    figure, grid = plot.new_panels(COST_PANEL[0] * across, COST_PANEL[1] * lines, lines, across, squeeze=False)
    grid = grid.reshape(len(costs), len(names))
    labels: dict[Axes, list[Label]] = {}
    for (name, cost), rows in drawn.items():
        axes = grid[costs.index(cost), names.index(name)]
        labels[axes] = _draw_cost_panel(axes, owners[f"{name} score"], name, cost, rows)
    for axes in set(grid.flat) - set(labels):
        axes.remove()
    _place_labels(figure, labels, fontsize=8)
    return figure


def _complete_rows(table: ResultTable, name: str, cost: str) -> dict[str, tuple[Ours, Ours]]:
    """Return row -> our side of score and of cost, where all runs of both are finished; rows with k-MIP last."""
    rows = {row: (cells[f"{name} score"].ours, cells[f"{name} {cost}"].ours) for row, cells in table.rows.items()}
    complete = [row for row, sides in rows.items() if all(side and side.complete for side in sides)]
    return {row: rows[row] for row in sorted(complete, key=lambda row: "kMIP" in row)}


def _draw_cost_panel(
    axes: Axes, table: ResultTable, name: str, kind: str, rows: Mapping[str, tuple[Ours, Ours]]
) -> list[Label]:
    """Draw the models of one data set, and return their labels, those with k-MIP first."""
    labels: list[Label] = []
    for row, (score, cost) in rows.items():
        look = HIGHLIGHTED if "kMIP" in row else MUTED
        x, y = cost.mean, score.mean
        axes.errorbar([x], [y], yerr=score.std, fmt="o", elinewidth=0.7, markeredgecolor="white", **look["marker"])
        labels.insert(0, (x, y, row, look["label"]))
        if base := rows.get(row.removesuffix("+kMIP")) if row.endswith("+kMIP") else None:  # what k-MIP adds to it
            axes.plot([base[1].mean, x], [base[0].mean, y], color=plot.PALETTE[1], linewidth=0.9, alpha=0.5, zorder=2)
    plot.tidy(axes)
    axes.margins(x=0.16, y=0.12)
    low, high = axes.dataLim.intervalx
    if high > NARROW * low:
        plot.logarithmic(axes)
    axes.tick_params(labelsize=8, which="both")
    texts = []
    for column in (f"{name} {kind}", f"{name} score"):
        facts = table.columns[column]
        unit = f" ({facts['unit']})" if facts.get("unit") else ""
        texts.append(facts.get("metric", COSTS[kind]) + unit)
    plot.label(axes, *texts, title=name, size=9)
    return labels


def draw_ablation(tables: Mapping[str, ResultTable]) -> Figure:
    """Draw a dot with its standard deviation for each row of a table of one column, if it has a number."""
    (table,) = tables.values()
    (column,) = table.columns
    rows = list(table.rows)
    figure, axes = plot.new_panels(max(4.0, 0.85 * len(rows)), 3.2)
    for place, row in enumerate(rows):
        mean, spread = table.rows[row][column].our_mean, table.rows[row][column].our_spread
        if mean is not None:
            look = {"color": plot.PALETTE[0], "marker": "o", "markersize": 7, "capsize": 3, "linewidth": 1}
            axes.errorbar([place], [mean], yerr=[spread], **look)
            plot.note(axes, f"{mean:.4g}", (place, mean), (7, 0), va="center")
    axes.set_xticks(range(len(rows)), rows, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.5, len(rows) - 0.2)
    plot.label(axes, y=f"{column}, {table.columns[column].get('metric', 'score')}")
    plot.tidy(axes)
    axes.tick_params(axis="x", labelsize=8.5)
    return figure


def draw_batch_sizes(tables: Mapping[str, ResultTable]) -> Figure:
    """Draw a curve for each row of one table over the columns, which are batch sizes, on a logarithmic axis."""
    (table,) = tables.values()
    figure, axes = plot.new_panels(5.4, 3.3)
    for place, (row, cells) in enumerate(table.rows.items()):
        drawn = {int(size): cell for size, cell in cells.items() if cell.our_mean is not None}
        if drawn:
            means, spreads = ([getattr(cell, name) for cell in drawn.values()] for name in ("our_mean", "our_spread"))
            axes.errorbar(
                list(drawn), means, yerr=spreads, label=row, linewidth=1.5, capsize=3, **plot.series_style(place)
            )
    sizes = [int(size) for size in table.columns]
    plot.log2_ticks(axes, sizes, [str(size) for size in sizes])
    plot.label(axes, "graphs in a batch", next(iter(table.columns.values())).get("metric", "score"))
    axes.legend(fontsize=9, **plot.LEGEND)
    plot.tidy(axes)
    axes.grid(axis="x", color=plot.FAINT, alpha=0.2)
    return figure


def draw_peak_memory(tables: Mapping[str, ResultTable], options: Mapping[str, Any]) -> Figure:
    """Draw a group of bars for each row of a table of peak memory, a bar for each column, on a logarithmic axis.

    Args:
        tables: one; rows are data sets, columns methods.
        options: ``ylabel`` (default: the metric and unit of the table).
    """
    (table,) = tables.values()
    rows = [row for row, cells in table.rows.items() if any(cell.our_mean is not None for cell in cells.values())]
    columns = list(table.columns)
    figure, axes = plot.new_panels(1.5 + 0.95 * len(rows), 3.6)
    axes.set_yscale("log")
    width = 0.8 / len(columns)
    for number, column in enumerate(columns):
        means = [table.rows[row][column].our_mean for row in rows]
        bars = {place: mean for place, mean in enumerate(means) if mean is not None}
        at = [place + (number - (len(columns) - 1) / 2) * width for place in bars]
        axes.bar(at, list(bars.values()), width * 0.92, color=plot.PALETTE[number % len(plot.PALETTE)], label=column)
    axes.set_xticks(range(len(rows)), rows, rotation=25, ha="right", rotation_mode="anchor")
    facts = table.columns[columns[0]]
    plot.label(axes, y=options.get("ylabel", f"{facts['metric']}, {facts['unit']}"))
    axes.yaxis.set_major_formatter("{x:g}")
    plot.tidy(axes)
    figure.legend(ncols=2, **plot.LEGEND_BELOW)
    return figure


def _place_labels(figure: Figure, labels: Mapping[Axes, Iterable[Label]], fontsize: float = 8) -> None:
    """Write labels where they cover the least: points, each other, lines; last of all, as it settles the layout."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    renderer = FigureCanvasAgg(figure).get_renderer()
    for axes, panel_labels in labels.items():
        half, frame = 4 * figure.dpi / 72, axes.get_window_extent().padded(-2)
        drawn = [line.get_xydata() for line in axes.lines if line.get_marker() not in ("None", "|", "_")]
        points = [axes.transData.transform(point) for data in drawn for point in data]
        marks = [Bbox.from_extents(x - half, y - half, x + half, y + half) for x, y in points]
        lines = [line for line in axes.lines if line.get_linestyle() != "None"]
        paths = [line.get_transform().transform_path(line.get_path()) for line in lines]
        texts = [
            plot.note(axes, text, (x, y), (0, 0), fontsize=fontsize, va="bottom", **look)
            for x, y, text, look in panel_labels
        ]
        boxes, costs = [], []
        for text in texts:
            # text is a little wider at another resolution
            extent, shift = text.get_window_extent(renderer).padded(1), figure.dpi / 72
            point = axes.transData.transform(text.xy)
            boxes.append([_shift_box(extent, x * shift, y * shift) for x, y in PLACES])
            costs.append([])
            for number, box in enumerate(boxes[-1]):  # lines cost least, then the distance
                inside = frame.x0 < box.x0 and box.x1 < frame.x1 and frame.y0 < box.y0 and box.y1 < frame.y1
                crossed = sum(path.intersects_bbox(box, filled=False) for path in paths)
                covered = sum(box.overlaps(mark) for mark in marks)
                nearer = any(_distance(box, other) < _distance(box, point) - 1 for other in points)
                costs[-1].append(20 * covered + 200 * (not inside) + 15 * nearer + 2 * crossed + 0.3 * number)
        for text, place in zip(texts, _choose_places(np.array(boxes), np.array(costs)), strict=True):
            _move(text, PLACES[place])
            if max(map(abs, PLACES[place])) > FAR:
                line = {"arrowstyle": "-", "color": plot.FAINT, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
                axes.annotate("", text.xy, PLACES[place], textcoords="offset points", arrowprops=line)


def _choose_places(boxes: np.ndarray, costs: np.ndarray) -> list[int]:
    """Return the place of each label, the cheapest that is left, one after the other.

    Args:
        boxes: (L, P, 2, 2), lower left and upper right corner of each label at each place.
        costs: (L, P), of each place without the other labels.
    """
    low, high = boxes[..., 0, :], boxes[..., 1, :]
    chosen: list[int] = []
    for label_number, cost in enumerate(costs):
        before = np.arange(label_number), chosen
        meets = (low[label_number][:, None] < high[before]) & (low[before] < high[label_number][:, None])  # (P, L, 2)
        chosen.append(int((cost + 30 * meets.all(-1).sum(1)).argmin()))
    return chosen


def _shift_box(extent: Bbox, x: float, y: float) -> Bbox:
    """Return where a text is, of this extent with its lower left corner at its point, if `_move` shifts it by x, y."""
    left = x - extent.width * (0 if x > 0 else 1 if x < 0 else 0.5)
    low = y - extent.height * (0.5 if y == 0 else 0 if y > 0 else 1)
    return extent.translated(left, low)


def _distance(box: Bbox, point: np.ndarray) -> float:
    x, y = point
    return math.hypot(max(box.x0 - x, 0, x - box.x1), max(box.y0 - y, 0, y - box.y1))


def _move(text: Annotation, place: tuple[float, float]) -> None:
    x, y = place
    text.set_position(place)
    text.set_ha("left" if x > 0 else "right" if x < 0 else "center")
    text.set_va("center" if y == 0 else "bottom" if y > 0 else "top")
