"""Figure of growth: time over the number of nodes with fitted power laws, and speed-ups (GECO paper, figure 2)."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from graphgps_kmip.common.durations import axis_duration
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report.learning_curves import FAINT, INK, series_style, tidy
from graphgps_kmip.report.result_table import ResultTable

Points = list[tuple[float, float]]
SIZE = re.compile(r"N=(\d+)$")
FIT_FROM, FIT_SIZES = 8192, 3  # nodes; below, the fixed cost of calls hides how the time grows


def draw_scaling(tables: Mapping[str, ResultTable], options: Mapping[str, Any]) -> Figure:
    """Draw times on the left, a line for each method, and speed-ups on the right; all axes logarithmic.

    A power law that is fitted to the sizes from 8,192 nodes on is dashed over all sizes of the figure, so also where
    nothing was measured, and the legend says so. Printed speed-ups have hollow marks.

    Args:
        tables: rows ``N=512``.
        options: ``lines`` and ``speedups``: name -> ``[id of the table, column]``, times in ms.

    Raises:
        ValueError: a line names a table or column that is not there.
    """
    figure = Figure(figsize=(9.2, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    sizes = [n for table in tables.values() for n in map(_size, table.rows) if n is not None]
    handles = [_draw_times(left, tables, options["lines"], max(sizes, default=FIT_FROM))]
    handles.append(_draw_speedups(right, tables, options["speedups"]))
    left.set_title("time of a layer, forward and backward", fontsize=9.5, color=INK)
    right.set_title("speed-up of GECO", fontsize=9.5, color=INK)
    words = axis_duration, lambda value, _: f"{value:g}x"
    for axes, lines, word in zip((left, right), handles, words, strict=True):
        axes.set(xscale="log", yscale="log")
        tidy(axes)
        axes.yaxis.set_major_formatter(FuncFormatter(word))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(NullFormatter())
        axes.tick_params(labelsize=8, which="both")
        axes.set_xlabel("number of nodes", fontsize=9, color=INK)
        axes.legend(handles=lines, loc="upper left", frameon=False, fontsize=7.5, labelcolor=INK)
    return figure


def _draw_times(axes: Axes, tables: Mapping[str, ResultTable], lines: Mapping[str, list[str]], last: int) -> list:
    handles, fitted = [], False
    for number, (name, place) in enumerate(lines.items()):
        points, style = _points(tables, place, name), series_style(number)
        if not points:
            continue
        label, law = name, _fit(points)
        if law is not None:
            slope, factor = law
            ends = [float(FIT_FROM), float(max(last, points[-1][0]))]
            axes.plot(ends, [factor * n**slope for n in ends], linestyle="--", linewidth=1, color=style["color"])
            label, fitted = f"{name} ($N^{{{slope:.2f}}}$)", True
        axes.plot(*zip(*points, strict=True), linewidth=1.8, markersize=4.5, **style)
        handles.append(Line2D([], [], label=label, **style))
    if fitted:
        words = "fit from 8,192 nodes on; extrapolated beyond the marks"
        handles.append(Line2D([], [], linestyle="--", linewidth=1, color=FAINT, label=words))
    return handles


def _draw_speedups(axes: Axes, tables: Mapping[str, ResultTable], lines: Mapping[str, list[str]]) -> list:
    axes.axhline(1, color=FAINT, linewidth=0.8)
    handles = []
    for number, (name, place) in enumerate(lines.items()):
        style = series_style(number)
        for printed in (False, True):
            points = _points(tables, place, name, printed)
            if points:
                look = {"linestyle": "--", "fillstyle": "none", "linewidth": 1} if printed else {"linewidth": 1.8}
                label = f"{name}, paper" if printed else name
                axes.plot(*zip(*points, strict=True), markersize=4.5, **look, **style)
                handles.append(Line2D([], [], label=label, **look, **style))
    return handles


def _points(tables: Mapping[str, ResultTable], place: list[str], name: str, printed: bool = False) -> Points:
    key, column = place
    if key not in tables or column not in tables[key].columns:
        raise ResultsError(f"line {name!r}: no column {column!r} of table {key!r} among the figure's tables")
    found = {}
    for row, cells in tables[key].rows.items():
        value = cells[column].paper_mean if printed else cells[column].our_mean
        if value is not None and (n := _size(row)) is not None:
            found[n] = value
    return sorted(found.items())


def _fit(points: Points) -> tuple[float, float] | None:
    """Return exponent and factor of a power law through the large sizes; None for fewer than three of them."""
    large = [(math.log(n), math.log(y)) for n, y in points if n >= FIT_FROM and y > 0]
    if len(large) < FIT_SIZES:
        return None
    slope, intercept = statistics.linear_regression(*zip(*large, strict=True))
    return slope, math.exp(intercept)


def _size(row: str) -> int | None:
    found = SIZE.match(row)
    return int(found[1]) if found else None
