"""What a training pass spends its time on, full attention beside k-MIP (k-MIP paper, figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report.figures.points import ours
from graphgps_kmip.report.plot_style import INK, PALETTE, duration, tidy
from graphgps_kmip.report.result_table import Cell, ResultTable

ENLARGED = 0.5  # of the slowest: bars below are drawn a second time, enlarged


def draw_breakdown(
    tables: Mapping[str, ResultTable],
    artefacts: Mapping[str, Path],  # noqa: ARG001
    options: Mapping[str, Any],
) -> Figure:
    """Draw one bar for each row, its stages one on the other: all at one scale, and the quick ones again, enlarged.

    Args:
        tables: one; rows are contestants, columns stages in ms.
        artefacts: none.
        options: ``stages``: column -> what it is called, the first one lowest.

    Raises:
        ValueError: the table has no such column.
    """
    (table,) = tables.values()
    stages = options["stages"]
    if lost := [stage for stage in stages if stage not in table.columns]:
        raise ResultsError(f"stages: {table.id} has no column {', '.join(lost)}")
    rows = {name: cells for name, cells in table.rows.items() if any(ours(cells[stage]) for stage in stages)}
    total = {name: sum(ours(cells[stage]) or 0.0 for stage in stages) for name, cells in rows.items()}
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
        heights = [ours(cells[stage]) or 0.0 for cells in rows.values()]
        axes.bar(range(len(rows)), heights, 0.62, base, color=PALETTE[place % len(PALETTE)], label=name)
        base = [low + height for low, height in zip(base, heights, strict=True)]
    for at, name in enumerate(rows):
        axes.annotate(
            duration(total[name]),
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
    axes.yaxis.set_major_formatter(FuncFormatter(duration))
