"""Figures of PPGT's case studies of token magnitude: kinds of attention, RRWP under SPE, norms (figures 2, 3, 5)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from graphgps_kmip.common.json_files import read_artefact
from graphgps_kmip.report.learning_curves import FAINT, INK, PALETTE, tidy

BAR = 0.25  # width


def draw_attention_kinds(artefact: Path) -> Figure:
    """Draw a query with its keys in the plane, and the weights that three kinds of attention give the keys.

    Args:
        artefact: file of ``run/magnitude.py attention``.
    """
    found = read_artefact(artefact)
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    plane, bars = figure.subplots(1, 2, width_ratios=(1, 1.5))
    for place, (name, end) in enumerate((("q", found["query"]), *found["keys"].items())):
        colour = INK if name == "q" else PALETTE[place - 1]
        plane.annotate("", end, (0, 0), arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.8})
        beside = (-10, 2) if name == "q" else (6, -4)  # a longer key passes the query on its right
        plane.annotate(name, end, beside, textcoords="offset points", color=colour, fontsize=10)
    far = 1.15 * max(map(max, found["keys"].values()))
    plane.set(xlim=(0, far), ylim=(0, far), aspect="equal")
    for place, name in enumerate(found["keys"]):
        heights = [weights[name] for weights in found["weights"].values()]
        shown = bars.bar(np.arange(len(heights)) + (place - 1) * BAR, heights, BAR, color=PALETTE[place], label=name)
        bars.bar_label(shown, fmt="%.2f", fontsize=8, color=INK, padding=1)
    bars.set_xticks(range(len(found["weights"])), found["weights"])
    bars.set_ylabel("attention weight", fontsize=9, color=INK)
    bars.set_ylim(0, 1.08)
    bars.legend(frameon=False, fontsize=9)
    for axes in (plane, bars):
        tidy(axes)
    return figure


def draw_encoded_differences(artefact: Path) -> Figure:
    """Draw the graph with its two pairs, and their difference by channel of RRWP, before and after SPE.

    Args:
        artefact: file of ``run/magnitude.py encoding``.
    """
    found = read_artefact(artefact)
    figure = Figure(figsize=(9.6, 3.2), layout="constrained")
    graph, raw, encoded = figure.subplots(1, 3, width_ratios=(1, 1.4, 1.4))
    _draw_pairs(graph, found)
    encoded_rows = np.array(found["encoded"])  # (channels, 2 S)
    raw.bar(range(len(found["raw"])), found["raw"], color=PALETTE[0])
    encoded.bar(range(len(found["raw"])), encoded_rows.max(axis=1), color=PALETTE[1])
    raw.set_title("RRWP", fontsize=10, color=INK)
    encoded.set_title("largest of its sines and cosines", fontsize=10, color=INK)
    top = 1.05 * max(encoded_rows.max(), max(found["raw"]))
    for axes in (raw, encoded):
        tidy(axes)
        axes.set(ylim=(0, top))
        axes.set_xlabel("channel (steps of the walk)", fontsize=9, color=INK)
    raw.set_ylabel("absolute difference", fontsize=9, color=INK)
    return figure


def _draw_pairs(axes: Axes, found: dict) -> None:
    """Draw a ring of six nodes and the path that leaves it."""
    angle = np.arange(6) * np.pi / 3
    places = [*zip(np.cos(angle), np.sin(angle), strict=True), (2, 0), (3, 0), (4, 0)]
    for first, second in found["edges"]:
        axes.plot(*zip(places[first], places[second], strict=True), color=FAINT, linewidth=1.4, zorder=1)
    axes.scatter(*zip(*places, strict=True), s=70, c="white", edgecolors=INK, zorder=2)
    (start, first), (_, second) = found["pairs"].values()
    for node, name, colour in ((start, "i", INK), (first, "j", PALETTE[0]), (second, "k", PALETTE[1])):
        axes.scatter(*places[node], s=110, c=colour, zorder=3)
        axes.annotate(name, places[node], (0, 8), textcoords="offset points", ha="center", color=colour, fontsize=11)
    axes.set(xlim=(-1.5, 4.5), ylim=(-1.5, 1.5), aspect="equal")
    axes.set_axis_off()


def draw_norm_autoencoders(artefact: Path) -> Figure:
    """Draw the points, and what an autoencoder with each norm makes of them.

    Args:
        artefact: file of ``run/magnitude.py norms``.
    """
    found = read_artefact(artefact)
    panels = {"input": found["points"]} | {name: one["predictions"] for name, one in found["norms"].items()}
    figure = Figure(figsize=(10.4, 3.0), layout="constrained")
    for axes, (place, (name, points)) in zip(figure.subplots(1, 4), enumerate(panels.items()), strict=True):
        axes.scatter(*zip(*points, strict=True), s=9, color=INK if not place else PALETTE[place - 1])
        error = f" (MSE {found['norms'][name]['error']:.0e})" if place else ""
        axes.set_title(f"{name}{error}", fontsize=9, color=INK)
        axes.set(xlim=(-1.7, 1.7), ylim=(-1.7, 1.7), aspect="equal")
        tidy(axes)
    return figure
