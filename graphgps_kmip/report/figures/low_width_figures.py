"""Figures of the low-width method: energy distance over width, and peak memory (low-width paper, figures 2 and 3)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from graphgps_kmip.common.json_files import read_artefact
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report.learning_curves import FAINT, INK, PALETTE, series_style, tidy
from graphgps_kmip.report.result_table import ResultTable

EDGES = {"all": "graph edges, expander edges, self loops", "graph": "graph edges alone"}
BASELINES = {"uniform": ("uniform over neighbours", PALETTE[1]), "random": ("random logits in [-8, 8]", PALETTE[3])}


def draw_energy_distances(artefact: Path) -> Figure:
    """Draw the energy distance to the widest networks over the width, a panel for each attention graph.

    The thick line is the mean over the layers, thin lines are single layers, broken lines the two baselines. The point
    of the widest compares its trainings with each other, in halves.

    Args:
        artefact: a file of ``run/narrow_estimators.py``.

    Raises:
        ValueError: the file is another one.
    """
    content = read_artefact(artefact)
    if content.get("measure") != "energy distance":
        raise ResultsError(f"{artefact} does not hold energy distances: make it with run/narrow_estimators.py")
    panels = content["edges"]
    figure = Figure(figsize=(1 + 3.4 * len(panels), 3.5), layout="constrained")
    places = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (edges, found) in zip(places, panels.items(), strict=True):
        _draw_widths(axes, found["distances"], content["reference"])
        sizes = f"{found['nodes']:,} nodes, {found['num_edges']:,} edges"
        axes.set_title(f"{EDGES[edges]}\n{sizes}", fontsize=8.5, color=INK)
    handles = {label: line for line, label in zip(*figure.axes[0].get_legend_handles_labels(), strict=True)}
    figure.axes[0].set_ylabel(f"energy distance to width {content['reference']}", fontsize=9, color=INK)
    place = {"loc": "outside lower center", "ncols": 2, "frameon": False, "fontsize": 8.5, "labelcolor": INK}
    figure.legend(handles.values(), handles.keys(), **place)
    return figure


def _draw_widths(axes: Axes, distances: Mapping[str, list[float]], reference: int) -> None:
    widths = sorted(int(name) for name in distances if name not in BASELINES)
    curves = list(zip(*(distances[str(width)] for width in widths), strict=True))  # of each layer
    mean = [sum(distances[str(width)]) / len(curves) for width in widths]
    for number, curve in enumerate(curves):
        label = "single layers" if number == 0 else None
        axes.plot(widths, curve, color=PALETTE[0], linewidth=0.7, alpha=0.5, label=label)
    axes.plot(widths, mean, linewidth=2, label="mean over layers", **series_style(0))
    for name, (label, color) in BASELINES.items():
        height = sum(distances[name]) / len(distances[name])
        axes.axhline(height, color=color, linewidth=1.2, linestyle=(0, (4, 3)), label=label)
    axes.axhline(0, color=FAINT, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [f"{width}\n(halves)" if width == reference else str(width) for width in widths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("width of the estimator", fontsize=9, color=INK)
    tidy(axes)


def draw_peak_memory(tables: Mapping[str, ResultTable], options: Mapping[str, Any]) -> Figure:
    """Draw a group of bars for each row of a table of peak memory, a bar for each column, on a logarithmic axis.

    Args:
        tables: one; rows are data sets, columns methods.
        options: ``ylabel`` (default: the metric and unit of the table).
    """
    (table,) = tables.values()
    rows = [row for row, cells in table.rows.items() if any(cell.our_mean is not None for cell in cells.values())]
    columns = list(table.columns)
    figure = Figure(figsize=(1.5 + 0.95 * len(rows), 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set_yscale("log")
    width = 0.8 / len(columns)
    for number, column in enumerate(columns):
        found = {place: table.rows[row].get(column) for place, row in enumerate(rows)}
        bars = {place: cell.our_mean for place, cell in found.items() if cell is not None and cell.our_mean is not None}
        at = [place + (number - (len(columns) - 1) / 2) * width for place in bars]
        axes.bar(at, list(bars.values()), width * 0.92, color=PALETTE[number % len(PALETTE)], label=column)
    axes.set_xticks(range(len(rows)), rows, rotation=25, ha="right", rotation_mode="anchor")
    facts = table.columns[columns[0]]
    axes.set_ylabel(options.get("ylabel", f"{facts['metric']}, {facts['unit']}"), fontsize=9, color=INK)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    tidy(axes)
    place = {"loc": "outside lower center", "ncols": 2, "frameon": False, "fontsize": 8.5, "labelcolor": INK}
    figure.legend(**place)
    return figure
