"""Figures of ablations: one score for each variant, and scores over batch sizes (PPGT paper, figures 4 and 6)."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from graphgps_kmip.report.learning_curves import FAINT, INK, series_style, tidy
from graphgps_kmip.report.result_table import ResultTable


def draw_ablation(tables: Mapping[str, ResultTable]) -> Figure:
    """Draw a dot with its standard deviation for each row of a table of one column; rows without a number stay empty.

    Args:
        tables: one.
    """
    (table,) = tables.values()
    (column,) = table.columns
    rows = list(table.rows)
    figure = Figure(figsize=(max(4.0, 0.85 * len(rows)), 3.2), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        cell = table.rows[row][column]
        if cell.our_mean is None:
            continue
        look = {"color": series_style(0)["color"], "markersize": 7, "capsize": 3, "linewidth": 1}
        axes.errorbar([place], [cell.our_mean], yerr=[cell.our_spread], marker="o", **look)
        label = {"textcoords": "offset points", "fontsize": 8, "color": INK, "va": "center"}
        axes.annotate(f"{cell.our_mean:.4g}", (place, cell.our_mean), (7, 0), **label)
    axes.set_xticks(range(len(rows)), rows, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.5, len(rows) - 0.2)
    axes.set_ylabel(f"{column}, {table.columns[column].get('metric', 'score')}", fontsize=9, color=INK)
    tidy(axes)
    axes.tick_params(axis="x", labelsize=8.5)
    return figure


def draw_batch_sizes(tables: Mapping[str, ResultTable]) -> Figure:
    """Draw a curve for each row over the columns, which are batch sizes, on a logarithmic axis.

    Args:
        tables: one.
    """
    (table,) = tables.values()
    figure = Figure(figsize=(5.4, 3.3), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    for place, (row, cells) in enumerate(table.rows.items()):
        found = {int(size): cell for size, cell in cells.items() if cell.our_mean is not None}
        if not found:
            continue
        means, spreads = ([getattr(cell, name) for cell in found.values()] for name in ("our_mean", "our_spread"))
        axes.errorbar(list(found), means, yerr=spreads, label=row, linewidth=1.5, capsize=3, **series_style(place))
    sizes = [int(size) for size in table.columns]
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("graphs in a batch", fontsize=9, color=INK)
    facts = next(iter(table.columns.values()))
    axes.set_ylabel(facts.get("metric", "score"), fontsize=9, color=INK)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK)
    tidy(axes)
    axes.grid(axis="x", color=FAINT, alpha=0.2)
    return figure
