"""Figure of the step that theorem 2 of the k-MIP paper rests on: top-k softmax of scaled scores against hardmax."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from graphgps_kmip.common.json_files import read_artefact
from graphgps_kmip.report.plot_style import INK, series_style, tidy
from graphgps_kmip.report.result_table import ResultTable


def draw_hardmax(
    tables: Mapping[str, ResultTable],  # noqa: ARG001 (one signature for all drawers)
    artefacts: Mapping[str, Path],
    options: Mapping[str, Any],  # noqa: ARG001
) -> Figure:
    """Draw the distance to hardmax over lambda, and its bound as a dashed line."""
    (path,) = artefacts.values()
    found = read_artefact(path)
    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(found["rows"]):
        style = series_style(place) | {"markersize": 11 - 2 * place}  # what lies below shows around what is above
        exact = not any(row["error"])
        label = f"{row['maxima']} {'maximum' if row['maxima'] == 1 else 'tied maxima'}, k = {row['k']}"
        label += ": 0 at every λ" if exact else ""
        values = [error if error > 0 else float("nan") for error in row["error"]]
        axes.plot(found["lambdas"], values, **style, linewidth=1.5, label=label)
        if not exact:
            axes.plot(
                found["lambdas"], row["bound"], color=style["color"], linewidth=1, linestyle=(0, (4, 3)), zorder=1
            )
    tidy(axes)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(found["lambdas"])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(f"λ (the gap between maximum and next value is {found['rows'][0]['gap']:g})", color=INK)
    axes.set_ylabel("L1 distance to hardmax", color=INK)
    legend = axes.legend(
        frameon=False, fontsize=9, labelcolor=INK, loc="lower left", title="dashed: the bound", alignment="left"
    )
    legend.get_title().set(fontsize=9, color=INK)
    return figure
