"""Score against the time of an epoch over k, with the Pareto frontier (thesis, figure 6.5; k-MIP paper, figure 9)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from graphgps_kmip.report.figures.panels import legend, logarithmic, panels
from graphgps_kmip.report.figures.points import Label, ours, paper, place_labels, spread
from graphgps_kmip.report.plot_style import FAINT, INK, PALETTE
from graphgps_kmip.report.result_table import Cell, ResultTable

Point = tuple[float, float]  # time, score
OURS = {"color": PALETTE[0], "markeredgecolor": "white", "markersize": 7}
PAPER = {"color": PALETTE[1], "fillstyle": "none", "markersize": 6, "markeredgewidth": 1.2}


def draw_pareto(
    tables: Mapping[str, ResultTable],
    artefacts: Mapping[str, Path],  # noqa: ARG001
    options: Mapping[str, Any],
) -> Figure:
    """Draw one panel for each column: a point for each row, and as steps those that no other beats in both.

    Args:
        tables: two, with the same rows (``k=10``) and columns (data sets): first the scores, then the times.
        artefacts: none.
        options: ``columns``: those that are drawn (default: all); ``time``: what the times are (default: the metric).
    """
    scores, times = tables.values()
    figure, drawn = panels(scores, times, options)
    labels: dict[Axes, list[Label]] = {}
    for column, axes in drawn.items():
        logarithmic(axes)
        higher = scores.columns[column].get("better") != "lower"
        labels[axes] = []
        for read, look in ((paper, PAPER), (ours, OURS)):
            points = _points(scores, times, column, read)
            _draw(axes, points, look, higher)
            labels[axes] += [(x, y, row.removeprefix("k="), look["color"]) for row, (x, y) in points.items()]
        for row in scores.rows:
            _whisker(axes, times.rows.get(row, {}).get(column), scores.rows[row][column])
        axes.margins(x=0.1, y=0.12)
    more = [Line2D([], [], color=INK, linewidth=1.2, label="Pareto frontier")]
    if all(row.startswith("k=") for row in scores.rows):
        more.append(Line2D([], [], marker="$10$", color=INK, markersize=9, linestyle="", label="k"))
    legend(figure, tables, *more)
    place_labels(figure, labels, fontsize=7.5)
    return figure


def frontier(points: list[Point], higher: bool = True) -> list[Point]:
    """Return the points that no other one beats: as fast and better, or faster and as good; by time."""
    sign = 1 if higher else -1
    kept: list[Point] = []
    for x, y in sorted(points, key=lambda point: (point[0], -sign * point[1])):
        if not kept or sign * y > sign * kept[-1][1]:
            kept.append((x, y))
    return kept


def _points(
    scores: ResultTable, times: ResultTable, column: str, read: Callable[[Cell], float | None]
) -> dict[str, Point]:
    pairs = {
        row: (read(times.rows[row][column]), read(scores.rows[row][column])) for row in scores.rows if row in times.rows
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
    if time is not None and ours(time) is not None and spread(score):
        axes.errorbar([ours(time)], [ours(score)], yerr=spread(score), color=FAINT, linewidth=0.8, zorder=1)
