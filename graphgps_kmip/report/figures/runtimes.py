"""Figures of run time: time or memory over the number of nodes, and what a training pass spends its time on.

k-MIP paper, figure 2, and thesis, figures 6.1 and 6.2 (over the number of nodes); k-MIP paper, figure 3 (stages).
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from graphgps_kmip.common.durations import axis_duration
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report.learning_curves import INK, PALETTE, series_style, tidy
from graphgps_kmip.report.result_table import Cell, ResultTable

Points = list[tuple[float, float]]
SIZE = re.compile(r"N=10\^([\d.]+)$")
SLOPE_FROM = 1e4  # nodes; below, the fixed cost of a call hides how the time grows
PANEL = (3.6, 3.3)  # inches
ENLARGED = 0.5  # of the slowest: bars below are drawn a second time, enlarged


def draw_runtimes(tables: Mapping[str, ResultTable], options: Mapping[str, Any]) -> Figure:
    """Draw one panel beside the other, both axes logarithmic, a line for each method: ours solid, the paper's dashed.

    A cross behind the end of a line: at a larger size memory ran out. The exponent of N, fitted to a line of ours from
    10^4 nodes on, is in the legend of a panel.

    Args:
        tables: rows ``N=10^x``, columns in ms or MB.
        options: ``panels``: title -> name of a line -> ``[id of the table, column]``.

    Raises:
        ValueError: a panel names a table or column that is not there.
    """
    panels = options["panels"]
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    across = min(len(panels), 3)
    down = -(-len(panels) // across)
    figure = Figure(figsize=(PANEL[0] * across, PANEL[1] * down + 0.25), layout="constrained")
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    drawn: dict[str, bool] = {}  # name -> whether the paper's line is drawn, too
    for axes, (title, lines) in zip(grid, panels.items(), strict=False):
        for name, (key, column) in lines.items():
            table = _checked(tables, key, column, title)
            found, printed = _draw_line(axes, table, column, series_style(names.index(name)))
            if found:
                drawn[name] = drawn.get(name, False) or printed
        _dress(axes, title, table.columns[column].get("unit", "ms"))
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    handles = [Line2D([], [], label=name, **series_style(names.index(name))) for name in names if name in drawn]
    grey = {"color": INK, "marker": "o", "markersize": 5}
    if any(drawn.values()):
        look = {"linestyle": "--", "fillstyle": "none", "linewidth": 1}
        handles += [Line2D([], [], label="ours", **grey), Line2D([], [], label="paper", **look, **grey)]
    if any(axes.texts for axes in grid):
        handles.append(Line2D([], [], label="then out of memory", color=INK, marker="x", linestyle="", markersize=6))
    words = {"frameon": False, "fontsize": 8.5, "labelcolor": INK, "handles": handles}
    if len(panels) < len(grid):  # a place is free for it
        grid[-1].legend(loc="center", **words)
    else:
        figure.legend(loc="outside lower center", ncols=min(len(handles), 2 * across), **words)
    return figure


def _checked(tables: Mapping[str, ResultTable], key: str, column: str, title: str) -> ResultTable:
    if key not in tables or column not in tables[key].columns:
        raise ResultsError(f"panel {title!r}: no column {column!r} of table {key!r} among the figure's tables")
    return tables[key]


def _draw_line(axes: Axes, table: ResultTable, column: str, style: dict[str, str]) -> tuple[bool, bool]:
    """Draw one method, and return whether there was anything, and whether the paper's line is in it."""
    cells = sorted((_size(row), row) for row in table.rows if _size(row) is not None)
    cells = [(n, table.rows[row][column]) for n, row in cells]
    mine = [(n, cell.our_mean) for n, cell in cells if cell.our_mean is not None]
    printed = [(n, cell.paper_mean) for n, cell in cells if cell.paper_mean is not None]
    if printed:
        axes.plot(*zip(*printed, strict=True), linestyle="--", linewidth=1, markersize=4.5, fillstyle="none", **style)
        full = [n for n, cell in cells if cell.printed is not None and _out_of_memory(cell.printed.text)]
        _mark_end(axes, printed, full, style["color"])
    if mine:
        errors = [cell.our_spread for _, cell in cells if cell.our_mean is not None]
        low = [min(error, 0.9 * y) for error, (_, y) in zip(errors, mine, strict=True)]  # of a logarithmic axis
        slope = _slope(mine)
        look = {"linewidth": 1.8, "markersize": 4.5, "markeredgecolor": "white", "markeredgewidth": 0.6}
        label = "" if slope is None else f"$N^{{{slope:.2f}}}$"
        axes.errorbar(*zip(*mine, strict=True), yerr=[low, errors], elinewidth=0.9, label=label, **look, **style)
        full = [n for n, cell in cells if cell.ours is not None and _out_of_memory(cell.ours.text)]
        _mark_end(axes, mine, full, style["color"])
    return bool(mine or printed), bool(printed)


def _mark_end(axes: Axes, points: Points, full: list[float], color: str) -> None:
    """Put a cross behind the last point, where memory ran out at a larger size."""
    if any(n > points[-1][0] for n in full):
        style = {"fontsize": 10, "fontweight": "bold", "color": color, "va": "bottom", "ha": "left"}
        axes.annotate("×", points[-1], (2, 1), textcoords="offset points", **style)


def _slope(points: Points) -> float | None:
    """Fit the exponent of N to the logarithms of at least three large sizes."""
    large = [(math.log(n), math.log(y)) for n, y in points if n >= 0.999 * SLOPE_FROM and y > 0]
    return statistics.linear_regression(*zip(*large, strict=True)).slope if len(large) >= 3 else None


def _dress(axes: Axes, title: str, unit: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    tidy(axes)
    axes.xaxis.set_major_locator(LogLocator(numticks=12))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(
        FuncFormatter(axis_duration if unit == "ms" else lambda value, _: f"{value:g} {unit}")
    )
    axes.tick_params(labelsize=8, which="both")
    axes.set_xlabel("number of nodes", fontsize=9, color=INK)
    axes.set_title(title, fontsize=9.5, color=INK)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(
            loc="upper left", frameon=False, fontsize=7.5, labelcolor=INK, title="growth of ours", title_fontsize=7.5
        )


def _size(row: str) -> float | None:
    """Return the number of nodes that a row such as ``N=10^4.5`` is named after; None for another row."""
    found = SIZE.match(row)
    return 10 ** float(found[1]) if found else None


def _out_of_memory(text: str) -> bool:
    """Return whether what is in the place of a number, ours or printed, says that memory ran out."""
    return "OOM" in text.upper()


def draw_breakdown(tables: Mapping[str, ResultTable], options: Mapping[str, Any]) -> Figure:
    """Draw one bar for each row, its stages one on the other: all at one scale, and the quick ones again, enlarged.

    Args:
        tables: one; rows are methods, columns stages in ms.
        options: ``stages``: column -> what it is called, the first one lowest.

    Raises:
        ValueError: the table has no such column.
    """
    (table,) = tables.values()
    stages = options["stages"]
    if lost := [stage for stage in stages if stage not in table.columns]:
        raise ResultsError(f"stages: {table.id} has no column {', '.join(lost)}")
    rows = {name: cells for name, cells in table.rows.items() if any(cells[stage].our_mean for stage in stages)}
    total = {name: sum(cells[stage].our_mean or 0.0 for stage in stages) for name, cells in rows.items()}
    quick = {name: cells for name, cells in rows.items() if total[name] < ENLARGED * max(total.values())}
    shown = [rows, quick] if quick else [rows]
    widths = [len(part) for part in shown]
    figure = Figure(figsize=(1.6 + 1.15 * sum(widths) + 0.5 * len(shown), 3.5), layout="constrained")
    panels = figure.subplots(1, len(shown), squeeze=False, width_ratios=widths)[0]
    for axes, part in zip(panels, shown, strict=True):
        _stack(axes, part, stages, total)
    panels[0].set_title("all at one scale", fontsize=9, color=INK)
    if quick:
        panels[1].set_title("enlarged", fontsize=9, color=INK)
    handles, labels = panels[0].get_legend_handles_labels()
    # in the order of the stack, the last stage on top
    figure.legend(handles[::-1], labels[::-1], loc="outside right center", frameon=False, fontsize=8.5, labelcolor=INK)
    return figure


def _stack(
    axes: Axes, rows: Mapping[str, Mapping[str, Cell]], stages: Mapping[str, str], total: Mapping[str, float]
) -> None:
    base = [0.0] * len(rows)
    for place, (stage, name) in enumerate(stages.items()):
        heights = [cells[stage].our_mean or 0.0 for cells in rows.values()]
        axes.bar(range(len(rows)), heights, 0.62, base, color=PALETTE[place % len(PALETTE)], label=name)
        base = [low + height for low, height in zip(base, heights, strict=True)]
    for at, name in enumerate(rows):
        axes.annotate(
            axis_duration(total[name]),
            (at, total[name]),
            (0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=INK,
        )
    tidy(axes)
    axes.set_xticks(range(len(rows)), [name.replace(", ", ",\n").replace(" attention", "\nattention") for name in rows])
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.margins(y=0.1)
    axes.tick_params(labelsize=8)
    axes.yaxis.set_major_formatter(FuncFormatter(axis_duration))
