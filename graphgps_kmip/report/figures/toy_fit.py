"""Figure of the toy for theorem 2 of the k-MIP paper: test error over the number of narrow blocks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from graphgps_kmip.common.json_files import read_artefact
from graphgps_kmip.report.plot_style import FAINT, INK, series_style, tidy
from graphgps_kmip.report.result_table import ResultTable

APART = 1.03  # factor on x between contestants, so that their seeds do not lie on each other


def draw_toy_fit(
    tables: Mapping[str, ResultTable],  # noqa: ARG001 (one signature for all drawers)
    artefacts: Mapping[str, Path],
    options: Mapping[str, Any],  # noqa: ARG001
) -> Figure:
    """Draw every seed's error as a faint mark, and the mean of seeds as a line."""
    (path,) = artefacts.values()
    found = read_artefact(path)
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    contestants = list(dict.fromkeys(row["attention"] for row in found["rows"]))
    for number, name in enumerate(contestants):
        rows = [row for row in found["rows"] if row["attention"] == name]
        style = series_style(number)
        x = [row["blocks"] * APART ** (2 * number - 1) for row in rows]
        axes.plot(x, [mean(row["error"]) for row in rows], **style, linewidth=1.6, label=name)
        for place, row in zip(x, rows, strict=True):
            errors = row["error"]
            axes.scatter([place] * len(errors), errors, s=14, color=style["color"], alpha=0.35, linewidths=0)
    tidy(axes)
    axes.axhline(found["linear"], color=FAINT, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
    at = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
    axes.annotate("affine map of each token", (1, found["linear"]), (0, 3), fontsize=9, color=INK, **at)
    blocks = sorted({row["blocks"] for row in found["rows"]})
    axes.set_xscale("log", base=2)
    axes.set_xticks(blocks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"blocks (2 heads of width 1, MLP width 4), after {found['steps']} steps of Adam", color=INK)
    axes.set_ylabel("test error (1: a constant)", color=INK)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="lower left")
    return figure
