"""Test score over the number of nodes: a line for each model, named at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from graphgps_kmip.report.learning_curves import FAINT, PALETTE, label, log2_ticks, new_panels, note, tidy
from graphgps_kmip.report.result_table import ResultTable

SIZE = (7.2, 4.2)  # inches
NAME_HEIGHT = 12.5  # points between two names
STRONG = {"linewidth": 2.6, "markersize": 7, "zorder": 3}
PLAIN = {"linewidth": 1.4, "markersize": 5, "zorder": 2}
FIRST = ("#0072B2", "#D55E00")  # of the emphasized rows
OTHERS = [color for color in PALETTE if color not in FIRST] + ["#6E7781", "#8250DF", "#9A6700"]
MARKERS = "osD^vP<>X"


def draw_score_over_size(tables: Mapping[str, ResultTable], options: Mapping[str, Any]) -> Figure:
    """Draw a line for each row of a table whose columns are numbers, over a logarithmic axis, with the spread as bars.

    Args:
        tables: one; a cell without runs is left out of its line.
        options: ``x``: title of the axis; ``emphasis``: rows with thick lines (default: none); ``chance``: a score that
            a guess has, a dashed line (default: none).
    """
    (table,) = tables.values()
    strong, others = options.get("emphasis", []), iter(OTHERS * len(table.rows))
    figure, axes = new_panels(*SIZE)
    ends: list[tuple[float, float, str, str, bool]] = []  # x, y, name, colour, whether it is emphasized
    for place, (row, cells) in enumerate(table.rows.items()):
        drawn = {int(column): cell for column, cell in cells.items() if cell.our_mean is not None}
        if not drawn:
            continue
        color = FIRST[strong.index(row) % len(FIRST)] if row in strong else next(others)
        means = [cell.our_mean for cell in drawn.values()]
        spreads = [cell.our_spread or 0.0 for cell in drawn.values()]
        look = STRONG if row in strong else PLAIN
        marker = MARKERS[place % len(MARKERS)]
        axes.errorbar(list(drawn), means, yerr=spreads, color=color, marker=marker, capsize=2.5, elinewidth=1, **look)
        ends.append((list(drawn)[-1], means[-1], row, color, row in strong))
    sizes = sorted({int(column) for _, column, cell in table.places() if cell.our_mean is not None})
    log2_ticks(axes, sizes, [f"{size:,}" for size in sizes])
    axes.set_xlim(sizes[0] / 1.12, sizes[-1] * 1.12)
    metric = next(iter(table.columns.values()))
    if "chance" in options:
        axes.axhline(options["chance"], color=FAINT, linestyle=(0, (4, 3)), linewidth=1)
        note(axes, "guess", (sizes[0], options["chance"]), (0, -10), color=FAINT, fontsize=8.5)
    label(axes, options["x"], f"{metric.get('metric', 'score')}, {metric.get('unit') or ''}".rstrip(", "), size=10)
    tidy(axes)
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
    shift = max(0.0, low - min(heights, default=low))  # names below the axes move all of them up
    for (x, y, name, color, is_strong), height in zip(ordered, heights, strict=True):
        at = axes.transData.inverted().transform((0, height + shift))[1]
        axes.annotate(
            name,
            (x, y),
            (axes.get_xlim()[1] * 1.05, at),
            color=color,
            fontsize=10 if is_strong else 9,
            fontweight="bold" if is_strong else "normal",
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": color,
                "linewidth": 0.6,
                "shrinkA": 0,
                "shrinkB": 3,
                "relpos": (0, 0.5),
            },
        )
