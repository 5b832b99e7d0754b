"""One panel for each data set, with the score over a time: what two figures share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report.figures.points import ours, paper
from graphgps_kmip.report.plot_style import INK, tidy
from graphgps_kmip.report.result_table import ResultTable

PANEL = (3.5, 3.1)  # inches
MOST_IN_A_ROW = 3


def panels(scores: ResultTable, times: ResultTable, options: Mapping[str, Any]) -> tuple[Figure, dict[str, Axes]]:
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
    across = min(len(wanted), 2 if len(wanted) == 4 else MOST_IN_A_ROW)
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


def logarithmic(axes: Axes) -> None:
    """Make the axis of time logarithmic, with plain numbers also where it spans less than a power of ten."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def legend(figure: Figure, tables: Mapping[str, ResultTable], *more: Line2D) -> None:
    """Tell ours from the paper's, where both are drawn."""
    cells = [cell for table in tables.values() for row in table.rows.values() for cell in row.values()]
    grey = {"color": INK, "marker": "o", "linestyle": ""}
    handles = [Line2D([], [], label="ours", **grey)] if any(ours(cell) is not None for cell in cells) else []
    if any(paper(cell) is not None for cell in cells):
        handles.append(Line2D([], [], label="paper", fillstyle="none", **grey))
    handles += more
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8.5, labelcolor=INK
    )


def _has_point(scores: ResultTable, times: ResultTable, row: str, column: str) -> bool:
    if row not in times.rows:
        return False
    pair = scores.rows[row][column], times.rows[row][column]
    return any(all(read(cell) is not None for cell in pair) for read in (ours, paper))


def _with_unit(name: str, column: Mapping[str, Any]) -> str:
    return f"{name} ({column['unit']})" if column.get("unit") else name
