"""Figures of expressivity: colour refinement, top-k softmax against hardmax, and the toy of theorem 2.

One round of 1-WL (thesis, figure 3.2; k-MIP paper, 5), a pair of graphs that 1-WL leaves equal (3.3; 6), and the two
parts of the k-MIP paper's theorem 2: the limit of scaled scores, and the test error over the number of narrow blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from graphgps_kmip.common.json_files import read_artefact
from graphgps_kmip.report.learning_curves import FAINT, INK, series_style, tidy

# Light enough for dark numbers on them; numbers distinguish colours beyond the last one.
FILLS = ("#A6D3F2", "#F7C873", "#8FD6BE", "#E8B4D0", "#F2EBA0", "#C9CED4")
NODE = 340  # points squared
APART = 1.03  # factor on x between attentions, so that their seeds do not cover each other


def draw_iteration(artefact: Path) -> Figure:
    """Draw one round of 1-WL: the colours before, what each node sees, and the colours after."""
    found = read_artefact(artefact)["iteration"]
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


def draw_pair(artefact: Path) -> Figure:
    """Draw two graphs with their stable colours, one row for each test."""
    found = read_artefact(artefact)["pair"]
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


def draw_hardmax(artefact: Path) -> Figure:
    """Draw the distance to hardmax over lambda, and its bound as a dashed line."""
    found = read_artefact(artefact)
    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(found["rows"]):
        style = series_style(place) | {"markersize": 11 - 2 * place}  # a marker below shows around the one above
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


def draw_toy_fit(artefact: Path) -> Figure:
    """Draw every seed's error as a faint mark, and the mean of seeds as a line."""
    found = read_artefact(artefact)
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    attentions = list(dict.fromkeys(row["attention"] for row in found["rows"]))
    for number, name in enumerate(attentions):
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
