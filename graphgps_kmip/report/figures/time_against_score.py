"""Score over the time that training takes (k-MIP paper, figure 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from graphgps_kmip.report.figures.panels import legend, panels
from graphgps_kmip.report.figures.points import Label, ours, paper, place_labels, spread
from graphgps_kmip.report.plot_style import FAINT, series_style
from graphgps_kmip.report.result_table import Cell, ResultTable

# the paper's point below ours; one label stands for both, at ours where there is one
LOOKS = (
    (paper, {"fillstyle": "none", "markeredgewidth": 1.1, "markersize": 6.5}),
    (ours, {"markeredgecolor": "white", "markeredgewidth": 0.5, "markersize": 8}),
)


def draw_time_against_score(
    tables: Mapping[str, ResultTable],
    artefacts: Mapping[str, Path],  # noqa: ARG001
    options: Mapping[str, Any],
) -> Figure:
    """Draw one panel for each column: models as labelled points, ours filled, the paper's open.

    Args:
        tables: two, with the same rows (models) and columns (data sets): first the scores, then the times.
        artefacts: none.
        options: ``columns``: those that are drawn (default: all); ``time``: what the times are (default: the metric).
    """
    scores, times = tables.values()
    figure, drawn = panels(scores, times, options)
    labels: dict[Axes, list[Label]] = {}
    for column, axes in drawn.items():
        axes.set_xscale("log")
        labels[axes] = []
        for place, row in enumerate(row for row in scores.rows if row in times.rows):
            style, score = series_style(place), scores.rows[row][column]
            points = [point for look in LOOKS if (point := _point(axes, times.rows[row][column], score, look, style))]
            axes.plot(*zip(*points, strict=True), color=FAINT, linewidth=0.7, zorder=1) if len(points) > 1 else None
            labels[axes] += [(*point, row, style["color"]) for point in points[-1:]]
            if ours(score) is not None and spread(score) and points:
                axes.errorbar(*points[-1], yerr=spread(score), color=style["color"], linewidth=1, zorder=1)
        axes.margins(x=0.16, y=0.14)
    legend(figure, tables)
    place_labels(figure, labels)
    return figure


def _point(
    axes: Axes, time: Cell, score: Cell, look: tuple[Callable[[Cell], float | None], dict], style: dict[str, str]
) -> tuple[float, float] | None:
    """Draw the point of one model, ours or the paper's, and return it; None where one of its numbers is missing."""
    read, marker = look
    x, y = read(time), read(score)
    if x is None or y is None:
        return None
    axes.plot([x], [y], linestyle="", **style, **marker)
    return x, y
