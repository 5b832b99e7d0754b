"""How often nodes are selected as keys, layer by layer (thesis, figure 6.10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from graphgps_kmip.common.json_files import read_artefact
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report.plot_style import INK, PALETTE, tidy
from graphgps_kmip.report.result_table import ResultTable

MULTIPLES = (1, 2, 4)  # of k, which is the mean out-degree where no graph has fewer nodes
PANEL = (3.3, 1.7)  # inches
SIDES = ("share of the nodes", "share of the edges that leave them")


def draw_out_degrees(
    tables: Mapping[str, ResultTable],  # noqa: ARG001
    artefacts: Mapping[str, Path],
    options: Mapping[str, Any],
) -> Figure:
    """Draw for each layer which share of nodes has an out-degree in each bin, and which share of edges leaves them.

    Bars are means over models, whiskers their sample standard deviation, as in the tables.

    Args:
        tables: none.
        artefacts: one file of ``run/analyse.py degrees``.
        options: ``bins``: where bins after the first begin. The thesis has four bins, and prints no bounds; by default
            they begin at k, 2k and 4k.

    Raises:
        ValueError: the file or the bins do not fit.
    """
    (path,) = artefacts.values()
    content = read_artefact(path)
    if content.get("measure") != "degrees":
        raise ResultsError(f"{path} holds no out-degrees: make it with run/analyse.py degrees")
    starts = [0, *options.get("bins", [multiple * max(content["num_keys"]) for multiple in MULTIPLES])]
    if any(low >= high for low, high in zip(starts, starts[1:], strict=False)):
        raise ResultsError(f"bins: expected rising numbers above 0, got {starts[1:]}")
    layers = list(zip(*content["counts"], strict=True))  # of each layer, the counts of each model
    figure = Figure(figsize=(2 * PANEL[0], PANEL[1] * len(layers) + 0.5), layout="constrained")
    panels = figure.subplots(len(layers), 2, squeeze=False, sharex=True, sharey=True)
    for number, (pair, models) in enumerate(zip(panels, layers, strict=True), start=1):
        shares = np.array([binned(counts, starts) for counts in models])  # (models, 2, bins)
        for axes, share in zip(pair, shares.transpose(1, 0, 2), strict=True):
            _bars(axes, share, f"layer {number}" if axes is pair[0] else "")
    names = [_name(low, high) for low, high in zip(starts, [*starts[1:], None], strict=True)]
    for axes, side in zip(panels[0], SIDES, strict=True):
        axes.set_title(side, fontsize=9.5, color=INK)
    panels[0, 0].set_ylim(0, None)
    panels[0, 0].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for axes in panels[-1]:
        axes.set_xticks(range(len(names)), names)
    models = len(content["runs"])
    over = f"mean ± std over {models} models" if models > 1 else "one model"
    figure.supxlabel(
        f"out-degree: queries that select a node ({over}, {content['graphs']} graphs)", fontsize=9, color=INK
    )
    return figure


def binned(counts: Sequence[int], starts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of nodes and of edges in each bin.

    Args:
        counts: number of nodes with out-degree 0, 1, 2, ...
        starts: smallest out-degree of each bin, from 0 up.
    """
    degree, nodes = np.arange(len(counts)), np.asarray(counts, dtype=float)
    place = np.digitize(degree, starts) - 1
    totals = [np.bincount(place, weights, minlength=len(starts)) for weights in (nodes, nodes * degree)]
    return tuple(total / total.sum() for total in totals)


def _bars(axes: Axes, share: np.ndarray, label: str) -> None:
    mean, std = share.mean(0), share.std(0, ddof=1) if len(share) > 1 else None
    error = {"ecolor": INK, "elinewidth": 1, "capsize": 3}
    axes.bar(range(len(mean)), mean, 0.7, yerr=std, color=PALETTE[0], error_kw=error)
    for at, value in enumerate(mean):
        top = value if std is None else value + std[at]
        text = f"{100 * value:.0f}" if value >= 0.01 or value == 0 else f"{100 * value:.1g}"
        axes.annotate(text, (at, top), (0, 2), textcoords="offset points", ha="center", fontsize=8, color=INK)
    tidy(axes)
    axes.margins(y=0.2)
    axes.set_ylabel(label, fontsize=9, color=INK)


def _name(low: int, high: int | None) -> str:
    if high is None:
        return f"{low} or more"
    return f"{low} to {high - 1}" if high - low > 1 else str(low)
