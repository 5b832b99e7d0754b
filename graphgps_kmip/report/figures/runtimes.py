"""Figures over the number of nodes: time or memory, speed-ups, test score; and what a training pass spends its time on.

k-MIP paper, figures 2 and 3; thesis, figures 6.1 and 6.2; GECO paper, figure 2 (fitted power laws, and speed-ups).
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from graphgps_kmip.common.environment import axis_duration
from graphgps_kmip.report import learning_curves as plot
from graphgps_kmip.report.result_table import Cell, ResultTable

Points = list[tuple[float, float]]
SIZE = re.compile(r"N=(10\^)?([\d.]+)$")
SLOPE_FROM = 1e4  # nodes; below, the fixed cost of a call hides how the time grows
FIT_FROM = 8192  # likewise, of sizes that are powers of two
PANEL = (3.6, 3.3)  # inches
ENLARGED = 0.5  # of the slowest: bars below are drawn a second time, enlarged
SIZE_PANEL = (7.2, 4.2)  # inches
NAME_HEIGHT = 12.5  # points between two names
STRONG = {"linewidth": 2.6, "markersize": 7, "zorder": 3}
PLAIN = {"linewidth": 1.4, "markersize": 5, "zorder": 2}
FIRST = plot.PALETTE[:2]  # of the emphasized rows
OTHERS = (*plot.PALETTE[2:], "#6E7781", "#9A6700", "#0A7D8C")
PRINTED = {"linestyle": "--", "fillstyle": "none", "linewidth": 1}


def draw_runtimes(tables: Mapping[str, ResultTable], options: Mapping[str, Any]) -> Figure:
    """Draw panels next to each other, both axes logarithmic, a line for each method: ours solid, the paper's dashed.

    A cross after a line: then out of memory. The exponent of N, fitted from 10^4 nodes on, is in the legend.

    Args:
        tables: rows ``N=10^x``, columns in ms or MB.
        options: ``panels``: title -> name of a line -> ``[id of the table, column]``.
    """
    panels = options["panels"]
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    across = min(len(panels), 3)
    down = -(-len(panels) // across)
    figure, grid = plot.new_panels(PANEL[0] * across, PANEL[1] * down + 0.25, down, across, squeeze=False)
    grid = list(grid.flat)
    drawn: dict[str, bool] = {}  # name -> whether the paper's line is drawn, too
    for axes, (title, lines) in zip(grid, panels.items(), strict=False):
        for name, (key, column) in lines.items():
            cells = _cells(tables[key], column)
            style = plot.series_style(names.index(name))
            printed = _draw_line(axes, cells, "paper", style)
            if _draw_line(axes, cells, "ours", style) or printed:
                drawn[name] = drawn.get(name, False) or printed
        _dress_panel(axes, title, tables[key].columns[column].get("unit", "ms"))
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    handles = [Line2D([], [], label=name, **plot.series_style(names.index(name))) for name in names if name in drawn]
    grey = {"color": plot.INK, "marker": "o", "markersize": 5}
    if any(drawn.values()):
        handles += [Line2D([], [], label="ours", **grey), Line2D([], [], label="paper", **PRINTED, **grey)]
    if any(axes.texts for axes in grid):
        handles.append(
            Line2D([], [], label="then out of memory", color=plot.INK, marker="x", linestyle="", markersize=6)
        )
    if len(panels) < len(grid):  # a place is free for it
        grid[-1].legend(loc="center", handles=handles, fontsize=8.5, **plot.LEGEND)
    else:
        place = {"loc": "outside lower center", "ncols": min(len(handles), 2 * across)}
        figure.legend(handles=handles, fontsize=8.5, **place, **plot.LEGEND)
    return figure


def _cells(table: ResultTable, column: str) -> list[tuple[float, Cell]]:
    """Return number of nodes and cell of the rows that are named after a size, ``N=512`` or ``N=10^4.5``."""
    sizes = {row: match for row in table.rows if (match := SIZE.match(row))}
    cells = [
        (10 ** float(size[2]) if size[1] else float(size[2]), table.rows[row][column]) for row, size in sizes.items()
    ]
    return sorted(cells, key=lambda pair: pair[0])


def _draw_line(axes: Axes, cells: list[tuple[float, Cell]], side: str, style: dict[str, str]) -> bool:
    """Draw one method, of ours or the paper's side, and return whether there was anything."""
    means = [(n, cell.our_mean if side == "ours" else cell.paper_mean) for n, cell in cells]
    points = [(n, mean) for n, mean in means if mean is not None]
    if not points:
        return False
    if side == "paper":
        axes.plot(*zip(*points, strict=True), markersize=4.5, **PRINTED, **style)
    else:
        errors = [cell.our_spread for _, cell in cells if cell.our_mean is not None]
        low = [min(error, 0.9 * y) for error, (_, y) in zip(errors, points, strict=True)]  # of a logarithmic axis
        law = _fit_power(points, 0.999 * SLOPE_FROM)
        look = {"linewidth": 1.8, "markersize": 4.5, "markeredgecolor": "white", "markeredgewidth": 0.6}
        text = "" if law is None else f"$N^{{{law[0]:.2f}}}$"
        axes.errorbar(*zip(*points, strict=True), yerr=[low, errors], elinewidth=0.9, label=text, **look, **style)
    texts = [(n, cell.ours if side == "ours" else cell.printed) for n, cell in cells]
    if any(n > points[-1][0] for n, content in texts if content is not None and "OOM" in content.text.upper()):
        cross = {"fontsize": 10, "fontweight": "bold", "color": style["color"], "va": "bottom", "ha": "left"}
        plot.note(axes, "×", points[-1], (2, 1), **cross)
    return True


def _fit_power(points: Points, smallest: float) -> tuple[float, float] | None:
    """Return exponent and factor of a power law through the large sizes; None for fewer than three of them."""
    large = [(math.log(n), math.log(y)) for n, y in points if n >= smallest and y > 0]
    if len(large) < 3:
        return None
    slope, intercept = statistics.linear_regression(*zip(*large, strict=True))
    return slope, math.exp(intercept)


def _dress_panel(axes: Axes, title: str, unit: str) -> None:
    _dress_axes(axes, FuncFormatter(axis_duration) if unit == "ms" else f"{{x:g}} {unit}")
    axes.xaxis.set_major_locator(LogLocator(numticks=12))
    plot.label(axes, title=title, size=9.5)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", fontsize=7.5, title="growth of ours", title_fontsize=7.5, **plot.LEGEND)


def _dress_axes(axes: Axes, formatter: FuncFormatter | str) -> None:
    axes.set(xscale="log", yscale="log")
    plot.tidy(axes)
    axes.yaxis.set_major_formatter(formatter)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=8, which="both")
    plot.label(axes, "number of nodes")


def draw_scaling(tables: Mapping[str, ResultTable], options: Mapping[str, Any]) -> Figure:
    """Draw times on the left, a line for each method, and speed-ups on the right; all axes logarithmic.

    A power law that is fitted to the sizes from 8,192 nodes on is dashed over all sizes. Printed marks are hollow.

    Args:
        tables: rows ``N=512``.
        options: ``lines`` and ``speedups``: name -> ``[id of the table, column]``, times in ms.
    """
    figure, (left, right) = plot.new_panels(9.2, 3.8, 1, 2)
    sizes = [n for table in tables.values() for n, _ in _cells(table, next(iter(table.columns)))]
    times, fitted = [], False
    for number, (name, (key, column)) in enumerate(options["lines"].items()):
        cells, style = _cells(tables[key], column), plot.series_style(number)
        points = [(n, cell.our_mean) for n, cell in cells if cell.our_mean is not None]
        if not points:
            continue
        text, law = name, _fit_power(points, FIT_FROM)
        if law is not None:
            slope, factor = law
            ends = [float(FIT_FROM), float(max(sizes))]
            left.plot(ends, [factor * n**slope for n in ends], linestyle="--", linewidth=1, color=style["color"])
            text, fitted = f"{name} ($N^{{{slope:.2f}}}$)", True
        left.plot(*zip(*points, strict=True), linewidth=1.8, markersize=4.5, **style)
        times.append(Line2D([], [], label=text, **style))
    if fitted:
        text = "fit from 8,192 nodes on; extrapolated beyond the marks"
        times.append(Line2D([], [], linestyle="--", linewidth=1, color=plot.FAINT, label=text))
    right.axhline(1, color=plot.FAINT, linewidth=0.8)
    speedups = []
    for number, (name, (key, column)) in enumerate(options["speedups"].items()):
        cells, style = _cells(tables[key], column), plot.series_style(number)
        for mean, look, text in (("our_mean", {"linewidth": 1.8}, name), ("paper_mean", PRINTED, f"{name}, paper")):
            points = [(n, getattr(cell, mean)) for n, cell in cells if getattr(cell, mean) is not None]
            if points:
                right.plot(*zip(*points, strict=True), markersize=4.5, **look, **style)
                speedups.append(Line2D([], [], label=text, **look, **style))
    plot.label(left, title="time of a layer, forward and backward", size=9.5)
    plot.label(right, title="speed-up of GECO", size=9.5)
    for axes, handles, formatter in ((left, times, FuncFormatter(axis_duration)), (right, speedups, "{x:g}x")):
        _dress_axes(axes, formatter)
        axes.legend(handles=handles, loc="upper left", fontsize=7.5, **plot.LEGEND)
    return figure


def draw_breakdown(tables: Mapping[str, ResultTable], options: Mapping[str, Any]) -> Figure:
    """Draw one bar for each row, its stages one on the other: all at one scale, and the quick ones again, enlarged.

    Args:
        tables: one; rows are methods, columns stages in ms.
        options: ``stages``: column -> what it is called, the first one lowest.
    """
    (table,) = tables.values()
    stages = options["stages"]
    rows = {name: [cells[stage].our_mean or 0.0 for stage in stages] for name, cells in table.rows.items()}
    rows = {name: heights for name, heights in rows.items() if any(heights)}
    slowest = max(map(sum, rows.values()), default=0.0)
    quick = {name: heights for name, heights in rows.items() if sum(heights) < ENLARGED * slowest}
    shown = {"all at one scale": rows} | ({"enlarged": quick} if quick else {})
    widths = [len(part) for part in shown.values()]
    width = 1.6 + 1.15 * sum(widths) + 0.5 * len(shown)
    figure, (panels,) = plot.new_panels(width, 3.5, 1, len(shown), squeeze=False, width_ratios=widths)
    for axes, (title, part) in zip(panels, shown.items(), strict=True):
        for place, name in enumerate(stages.values()):
            base = [sum(heights[:place]) for heights in part.values()]
            tops = [heights[place] for heights in part.values()]
            axes.bar(range(len(part)), tops, 0.62, base, color=plot.PALETTE[place % len(plot.PALETTE)], label=name)
        for place, heights in enumerate(part.values()):
            plot.note(axes, axis_duration(sum(heights)), (place, sum(heights)), (0, 2), ha="center")
        plot.tidy(axes)
        names = [name.replace(", ", ",\n").replace(" attention", "\nattention") for name in part]
        axes.set_xticks(range(len(part)), names)
        axes.set_xlim(-0.6, len(part) - 0.4)
        axes.margins(y=0.1)
        axes.tick_params(labelsize=8)
        axes.yaxis.set_major_formatter(FuncFormatter(axis_duration))
        plot.label(axes, title=title)
    handles, labels = panels[0].get_legend_handles_labels()
    # in the order of the stack, the last stage on top
    figure.legend(handles[::-1], labels[::-1], loc="outside right center", fontsize=8.5, **plot.LEGEND)
    return figure


def draw_score_over_size(tables: Mapping[str, ResultTable], options: Mapping[str, Any]) -> Figure:
    """Draw the means of each row as a line and its runs as dots, over a logarithmic axis of columns that are numbers.

    Args:
        tables: one; a cell without runs is left out of its line.
        options: ``x``: title of the axis; ``emphasis``: rows with thick lines (default: none); ``chance``: a score that
            a guess has, a dashed line (default: none).
    """
    (table,) = tables.values()
    strong, others = options.get("emphasis", []), itertools.cycle(OTHERS)
    figure, axes = plot.new_panels(*SIZE_PANEL)
    ends: list[tuple[float, float, str, str, bool]] = []  # x, y, name, colour, whether it is emphasized
    for place, (row, cells) in enumerate(table.rows.items()):
        drawn = {int(column): cell for column, cell in cells.items() if cell.our_mean is not None}
        if not drawn:
            continue
        color = FIRST[strong.index(row) % len(FIRST)] if row in strong else next(others)
        means = [cell.our_mean for cell in drawn.values()]
        look = STRONG if row in strong else PLAIN
        axes.plot(list(drawn), means, color=color, marker=plot.series_style(place)["marker"], **look)
        runs = [(size, value) for size, cell in drawn.items() for value in cell.ours.values]
        axes.plot(*zip(*runs, strict=True), ".", color=color, alpha=0.6, zorder=look["zorder"])
        ends.append((list(drawn)[-1], means[-1], row, color, row in strong))
    sizes = sorted({int(column) for _, column, cell in table.places() if cell.our_mean is not None})
    plot.log2_ticks(axes, sizes, [f"{size:,}" for size in sizes])
    axes.set_xlim(sizes[0] / 1.12, sizes[-1] * 1.12)
    metric = next(iter(table.columns.values()))
    if "chance" in options:
        axes.axhline(options["chance"], color=plot.FAINT, linestyle=plot.DASHED, linewidth=1)
        plot.note(axes, "guess", (sizes[0], options["chance"]), (0, -10), color=plot.FAINT, fontsize=8.5)
    score = f"{metric.get('metric', 'score')}, {metric.get('unit') or ''}".rstrip(", ")
    plot.label(axes, options["x"], f"{score} (line: mean, dots: runs)", size=10)
    plot.tidy(axes)
    _name_lines(figure, axes, ends)
    return figure


def _name_lines(figure: Figure, axes: Axes, ends: list[tuple[float, float, str, str, bool]]) -> None:
    """Write names to the right of the axes at the height of their lines' ends, at least `NAME_HEIGHT` apart."""
    figure.draw_without_rendering()
    points = figure.dpi / 72
    low, high = axes.get_window_extent().intervaly
    heights, above = [], high + NAME_HEIGHT * points
    ordered = sorted(ends, key=lambda end: -axes.transData.transform(end[:2])[1])
    for x, y, *_ in ordered:
        above = min(axes.transData.transform((x, y))[1], above - NAME_HEIGHT * points)
        heights.append(above)
    below = low - NAME_HEIGHT * points
    for place in reversed(range(len(heights))):  # names below the axes move those up that are in their way
        below = heights[place] = max(heights[place], below + NAME_HEIGHT * points)
    for (x, y, name, color, is_strong), height in zip(ordered, heights, strict=True):
        at = axes.transData.inverted().transform((0, height))[1]
        look = {"fontsize": 10, "fontweight": "bold"} if is_strong else {"fontsize": 9}
        line = {"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3, "relpos": (0, 0.5)}
        place = axes.get_xlim()[1] * 1.05, at
        axes.annotate(name, (x, y), place, color=color, va="center", annotation_clip=False, arrowprops=line, **look)
