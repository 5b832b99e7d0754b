"""Figures of expressivity and token magnitude: colour refinement, hardmax, the toy of theorem 2, PPGT's case studies.

Thesis, figures 3.2 and 3.3, and k-MIP paper, 5 and 6 (1-WL); theorem 2 of the k-MIP paper; PPGT paper, figures 2, 3, 5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from graphgps_kmip.common.atomic_write import read_artefact
from graphgps_kmip.report import learning_curves as plot

# Light enough for dark numbers on them; numbers distinguish colours beyond the last one.
FILLS = ("#A6D3F2", "#F7C873", "#8FD6BE", "#E8B4D0", "#F2EBA0", "#C9CED4")
NODE = 340  # points squared
APART = 1.03  # factor on x between attentions, so that their seeds do not cover each other
BAR = 0.25  # width


def draw_colourings_iteration(artefact: Path) -> Figure:
    """Draw one round of 1-WL: the colours before, what each node sees, and the colours after."""
    drawing = read_artefact(artefact)["iteration"]
    figure, (before, after) = plot.new_panels(8.4, 2.9, 1, 2)
    _draw_graph(before, drawing["graph"], drawing["before"])
    _draw_graph(after, drawing["graph"], drawing["after"])
    texts = zip(drawing["graph"]["places"], drawing["signatures"], drawing["sides"], strict=True)
    for place, signature, (right, up) in texts:
        side = {"ha": ("center", "left", "right")[right], "va": "bottom" if up > 0 else "top"}
        plot.note(after, signature, place, (-4 * right, 14 * up), fontsize=8.5, **side)
    plot.label(before, title="before", size=10)
    plot.label(after, title="after one round: (own colour, {colours of neighbours})", size=10)
    for axes in (before, after):
        axes.set(xlim=(-2.5, 3.4), ylim=(-1.35, 1.35))
    return figure


def draw_colourings_pair(artefact: Path) -> Figure:
    """Draw two graphs with their stable colours, one row for each test."""
    drawing = read_artefact(artefact)["pair"]
    figure = Figure(figsize=(7.6, 2.75 * len(drawing["tests"])), layout="constrained")
    rows = figure.subfigures(len(drawing["tests"]), 1, squeeze=False)[:, 0]
    for row, test in zip(rows, drawing["tests"], strict=True):
        after = test["separated_after"]
        verdict = "equal colours in every round" if after is None else f"different colours {_rounds(after)}"
        row.suptitle(f"{test['test']}: {verdict}", x=0.01, ha="left", fontsize=10.5, color=plot.INK)
        for axes, graph, colours in zip(row.subplots(1, 2), drawing["graphs"], test["colours"], strict=True):
            _draw_graph(axes, graph, colours)
            counts = ", ".join(f"{colour} ({count}x)" for colour, count in sorted(Counter(colours).items()))
            plot.label(axes, title=f"{graph['name']}: {counts}")
            axes.set(xlim=(-3.0, 3.0), ylim=(-1.3, 1.3))
    return figure


def _rounds(after: int) -> str:
    return "from the start" if after == 0 else f"after {after} round{'s' * (after > 1)}"


def _draw_graph(axes: Axes, graph: Mapping[str, Any], colours: Sequence[int]) -> None:
    places = graph["places"]
    for first, second in graph["edges"]:
        axes.plot(*zip(places[first], places[second], strict=True), color=plot.FAINT, linewidth=1.4, zorder=1)
    fills = [FILLS[colour % len(FILLS)] for colour in colours]
    axes.scatter(*zip(*places, strict=True), s=NODE, c=fills, edgecolors=plot.INK, linewidths=0.9, zorder=2)
    for (x, y), colour in zip(places, colours, strict=True):
        axes.text(x, y, str(colour), ha="center", va="center_baseline", fontsize=10, color=plot.INK, zorder=3)
    axes.set_aspect("equal")
    axes.set_axis_off()


def draw_hardmax(artefact: Path) -> Figure:
    """Draw the distance to hardmax over lambda, and its bound as a dashed line."""
    content = read_artefact(artefact)
    figure, axes = plot.new_panels(7.2, 4.0)
    for place, row in enumerate(content["rows"]):
        style = plot.series_style(place) | {"markersize": 11 - 2 * place}  # a marker below shows around the one above
        exact = not any(row["error"])
        text = f"{row['maxima']} {'maximum' if row['maxima'] == 1 else 'tied maxima'}, k = {row['k']}"
        text += ": 0 at every λ" if exact else ""
        values = [error if error > 0 else float("nan") for error in row["error"]]
        axes.plot(content["lambdas"], values, **style, linewidth=1.5, label=text)
        if not exact:
            look = {"color": style["color"], "linewidth": 1, "linestyle": plot.DASHED, "zorder": 1}
            axes.plot(content["lambdas"], row["bound"], **look)
    plot.tidy(axes)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(content["lambdas"])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(f"λ (the gap between maximum and next value is {content['rows'][0]['gap']:g})", color=plot.INK)
    axes.set_ylabel("L1 distance to hardmax", color=plot.INK)
    legend = axes.legend(fontsize=9, loc="lower left", title="dashed: the bound", alignment="left", **plot.LEGEND)
    legend.get_title().set(fontsize=9, color=plot.INK)
    return figure


def draw_toy_fit(artefact: Path) -> Figure:
    """Draw every seed's error as a faint mark, and the mean of seeds as a line."""
    content = read_artefact(artefact)
    figure, axes = plot.new_panels(6.4, 4.0)
    attentions = list(dict.fromkeys(row["attention"] for row in content["rows"]))
    for number, name in enumerate(attentions):
        rows = [row for row in content["rows"] if row["attention"] == name]
        style = plot.series_style(number)
        x = [row["blocks"] * APART ** (2 * number - 1) for row in rows]
        axes.plot(x, [mean(row["error"]) for row in rows], **style, linewidth=1.6, label=name)
        for place, row in zip(x, rows, strict=True):
            errors = row["error"]
            axes.scatter([place] * len(errors), errors, s=14, color=style["color"], alpha=0.35, linewidths=0)
    plot.tidy(axes)
    axes.axhline(content["linear"], color=plot.FAINT, linewidth=1.2, linestyle=plot.DASHED, zorder=1)
    at = {"xycoords": ("axes fraction", "data"), "ha": "right", "fontsize": 9}
    plot.note(axes, "affine map of each token", (1, content["linear"]), (0, 3), **at)
    plot.log2_ticks(axes, sorted({row["blocks"] for row in content["rows"]}))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"blocks (2 heads of width 1, MLP width 4), after {content['steps']} steps of Adam", color=plot.INK)
    axes.set_ylabel("test error (1: a constant)", color=plot.INK)
    axes.legend(fontsize=9, loc="lower left", **plot.LEGEND)
    return figure


def draw_attention_kinds(artefact: Path) -> Figure:
    """Draw a query with its keys in the plane, and the weights of three attentions (``run/magnitude.py attention``)."""
    content = read_artefact(artefact)
    figure, (plane, bars) = plot.new_panels(8.4, 3.2, 1, 2, width_ratios=(1, 1.5))
    for place, (name, end) in enumerate((("q", content["query"]), *content["keys"].items())):
        colour = plot.INK if name == "q" else plot.PALETTE[place - 1]
        plane.annotate("", end, (0, 0), arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.8})
        offset = (-10, 2) if name == "q" else (6, -4)  # a longer key passes the query on its right
        plot.note(plane, name, end, offset, color=colour, fontsize=10)
    far = 1.15 * max(map(max, content["keys"].values()))
    plane.set(xlim=(0, far), ylim=(0, far), aspect="equal")
    for place, name in enumerate(content["keys"]):
        heights = [weights[name] for weights in content["weights"].values()]
        shown = bars.bar(
            np.arange(len(heights)) + (place - 1) * BAR, heights, BAR, color=plot.PALETTE[place], label=name
        )
        bars.bar_label(shown, fmt="%.2f", fontsize=8, color=plot.INK, padding=1)
    bars.set_xticks(range(len(content["weights"])), content["weights"])
    plot.label(bars, y="attention weight")
    bars.set_ylim(0, 1.08)
    bars.legend(frameon=False, fontsize=9)
    for axes in (plane, bars):
        plot.tidy(axes)
    return figure


def draw_encoded_differences(artefact: Path) -> Figure:
    """Draw the graph with its two pairs, and their difference by channel of RRWP, before and after SPE."""
    content = read_artefact(artefact)
    figure, (graph, raw, encoded) = plot.new_panels(9.6, 3.2, 1, 3, width_ratios=(1, 1.4, 1.4))
    _draw_pairs(graph, content)
    encoded_rows = np.array(content["encoded"])  # (channels, 2 S)
    raw.bar(range(len(content["raw"])), content["raw"], color=plot.PALETTE[0])
    encoded.bar(range(len(content["raw"])), encoded_rows.max(axis=1), color=plot.PALETTE[1])
    plot.label(raw, title="RRWP", size=10)
    plot.label(encoded, title="largest of its sines and cosines", size=10)
    top = 1.05 * max(encoded_rows.max(), max(content["raw"]))
    for axes in (raw, encoded):
        plot.tidy(axes)
        axes.set(ylim=(0, top))
        plot.label(axes, "channel (steps of the walk)")
    plot.label(raw, y="absolute difference")
    return figure


def _draw_pairs(axes: Axes, content: dict[str, Any]) -> None:
    angle = np.arange(6) * np.pi / 3
    places = [*zip(np.cos(angle), np.sin(angle), strict=True), (2, 0), (3, 0), (4, 0)]
    for first, second in content["edges"]:
        axes.plot(*zip(places[first], places[second], strict=True), color=plot.FAINT, linewidth=1.4, zorder=1)
    axes.scatter(*zip(*places, strict=True), s=70, c="white", edgecolors=plot.INK, zorder=2)
    (start, first), (_, second) = content["pairs"].values()
    for node, name, colour in ((start, "i", plot.INK), (first, "j", plot.PALETTE[0]), (second, "k", plot.PALETTE[1])):
        axes.scatter(*places[node], s=110, c=colour, zorder=3)
        plot.note(axes, name, places[node], (0, 8), ha="center", color=colour, fontsize=11)
    axes.set(xlim=(-1.5, 4.5), ylim=(-1.5, 1.5), aspect="equal")
    axes.set_axis_off()


def draw_norm_autoencoders(artefact: Path) -> Figure:
    """Draw the points, and what an autoencoder with each norm makes of them (``run/magnitude.py norms``)."""
    content = read_artefact(artefact)
    panels = {"input": content["points"]} | {name: norm["predictions"] for name, norm in content["norms"].items()}
    figure, grid = plot.new_panels(10.4, 3.0, 1, 4)
    for axes, (place, (name, points)) in zip(grid, enumerate(panels.items()), strict=True):
        axes.scatter(*zip(*points, strict=True), s=9, color=plot.INK if not place else plot.PALETTE[place - 1])
        error = f" (MSE {content['norms'][name]['error']:.0e})" if place else ""
        plot.label(axes, title=f"{name}{error}")
        axes.set(xlim=(-1.7, 1.7), ylim=(-1.7, 1.7), aspect="equal")
        plot.tidy(axes)
    return figure
