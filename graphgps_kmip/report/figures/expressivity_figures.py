"""Figures of colour refinement: one round of 1-WL (thesis figure 3.2, paper 5), and an equal pair (3.3, 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from graphgps_kmip.common.json_files import read_artefact
from graphgps_kmip.report.plot_style import FAINT, INK
from graphgps_kmip.report.result_table import ResultTable

# Light enough for dark numbers on them; numbers tell colours beyond the last one apart.
FILLS = ("#A6D3F2", "#F7C873", "#8FD6BE", "#E8B4D0", "#F2EBA0", "#C9CED4")
NODE = 340  # points squared


def draw_iteration(
    tables: Mapping[str, ResultTable],  # noqa: ARG001 (one signature for all drawers)
    artefacts: Mapping[str, Path],
    options: Mapping[str, Any],  # noqa: ARG001
) -> Figure:
    """Draw one round of 1-WL: the colours before, what each node sees, and the colours after."""
    found = _read(artefacts)["iteration"]
    figure = Figure(figsize=(8.4, 2.9), layout="constrained")
    before, after = figure.subplots(1, 2)
    _draw_graph(before, found["graph"], found["before"])
    _draw_graph(after, found["graph"], found["after"])
    labels = zip(found["graph"]["places"], found["signatures"], found["sides"], strict=True)
    for place, signature, (right, up) in labels:
        after.annotate(
            signature,
            place,
            xytext=(-4 * right, 14 * up),
            textcoords="offset points",
            ha=("center", "left", "right")[right],
            va="bottom" if up > 0 else "top",
            fontsize=8.5,
            color=INK,
        )
    before.set_title("before", fontsize=10, color=INK)
    after.set_title("after one round: (own colour, {colours of neighbours})", fontsize=10, color=INK)
    for axes in (before, after):
        axes.set(xlim=(-2.5, 3.4), ylim=(-1.35, 1.35))
    return figure


def draw_pair(
    tables: Mapping[str, ResultTable],  # noqa: ARG001
    artefacts: Mapping[str, Path],
    options: Mapping[str, Any],  # noqa: ARG001
) -> Figure:
    """Draw two graphs with their stable colours, one row for each test."""
    found = _read(artefacts)["pair"]
    figure = Figure(figsize=(7.6, 2.75 * len(found["tests"])), layout="constrained")
    rows = figure.subfigures(len(found["tests"]), 1, squeeze=False)[:, 0]
    for row, test in zip(rows, found["tests"], strict=True):
        after = test["separated_after"]
        verdict = "equal colours in every round" if after is None else f"different colours {_rounds(after)}"
        row.suptitle(f"{test['test']}: {verdict}", x=0.01, ha="left", fontsize=10.5, color=INK)
        for axes, graph, colours in zip(row.subplots(1, 2), found["graphs"], test["colours"], strict=True):
            _draw_graph(axes, graph, colours)
            counts = ", ".join(f"{colour} ({count}x)" for colour, count in sorted(Counter(colours).items()))
            axes.set_title(f"{graph['name']}: {counts}", fontsize=9, color=INK)
            axes.set(xlim=(-3.0, 3.0), ylim=(-1.3, 1.3))
    return figure


def _read(artefacts: Mapping[str, Path]) -> dict[str, Any]:
    (path,) = artefacts.values()
    return read_artefact(path)


def _rounds(after: int) -> str:
    return "from the start" if after == 0 else f"after {after} round{'s' * (after > 1)}"


def _draw_graph(axes: Axes, graph: Mapping[str, Any], colours: Sequence[int]) -> None:
    places = graph["places"]
    for first, second in graph["edges"]:
        axes.plot(*zip(places[first], places[second], strict=True), color=FAINT, linewidth=1.4, zorder=1)
    fills = [FILLS[colour % len(FILLS)] for colour in colours]
    axes.scatter(*zip(*places, strict=True), s=NODE, c=fills, edgecolors=INK, linewidths=0.9, zorder=2)
    for (x, y), colour in zip(places, colours, strict=True):
        axes.text(x, y, str(colour), ha="center", va="center_baseline", fontsize=10, color=INK, zorder=3)
    axes.set_aspect("equal")
    axes.set_axis_off()
