"""Figures of approximations: k-MIP against full attention over k, and low-width networks' energy distance over width.

Distance and cumulative attention weight over k: thesis, figures 6.6 and 6.7; k-MIP paper, figure 8. Energy distance:
low-width paper, figure 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from graphgps_kmip.common.atomic_write import read_artefact
from graphgps_kmip.report import learning_curves as plot

GROUPS = {
    "first": ("first layer", plot.PALETTE[1]),
    "others": ("other layers", plot.PALETTE[0]),
    "gaussian": ("Gaussian inputs", plot.FAINT),
}
SPREADS = {"std": "graphs, layers and heads", "std_graphs": "graphs"}
PUBLIC = "\ndotted: the k keys of smallest inner product and k + 1 terms in the sum, as in the public script"
LEVELS = (0.5, 0.8)  # of the weight: both papers name the k that reaches them
EDGES = {"all": "graph edges, expander edges, self loops", "graph": "graph edges alone"}
BASELINES = {
    "uniform": ("uniform over neighbours", plot.PALETTE[1]),
    "random": ("random logits in [-8, 8]", plot.PALETTE[3]),
}


def draw_approximation(artefact: Path, options: Mapping[str, Any]) -> Figure:
    """Draw the distance between k-MIP and full attention over k, and that of Gaussian samples as a broken line.

    Thick lines are means, bands a standard deviation, thin lines single heads, dotted ones the public script's order.

    Args:
        artefact: a file of ``run/analyse.py distance``.
        options: ``groups``: ``first`` and ``others`` of the layers, ``gaussian`` (default: all of the file); ``std``:
            ``std`` over graphs, layers and heads (default), ``std_graphs`` over graphs.
    """
    figure, axes, content = _curves(artefact, "distance", options)
    groups = options.get("groups", content["groups"])
    references = {name: content["reference"][name] for name in groups if name != "gaussian"}
    highest = max(references, key=lambda name: references[name]["mean"])
    for name, reference in references.items():
        mean, std, color = reference["mean"], reference[options.get("std", "std")], GROUPS[name][1]
        axes.axhline(mean, color=color, linewidth=1, linestyle=plot.DASHED)
        offset, side = (3, "bottom") if name == highest else (-3, "top")  # the labels of two close lines go apart
        text = f"samples of N(0, I) in place of k-MIP: {mean:.2f} ± {std:.2f}"
        plot.note(axes, text, (content["k"][-1], mean), (0, offset), color=color, ha="right", va=side)
    for name in groups if "public_order" in content else ():
        mean = content["public_order"][name]["mean"]
        axes.plot(content["k"], mean, color=GROUPS[name][1], linewidth=2.2, linestyle=(0, (1, 1.2)))
    plot.label(axes, y="L2 distance to full attention")
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    return figure


def draw_cumulative(artefact: Path, options: Mapping[str, Any]) -> Figure:
    """Draw the share of the attention weight on the k keys of largest score, with its values at 0.5 and 0.8.

    Args:
        artefact: a file of ``run/analyse.py cumulative``.
        options: as `draw_approximation`, with the group ``gaussian``.
    """
    figure, axes, content = _curves(artefact, "cumulative", options)
    color = GROUPS["others" if "others" in content["groups"] else "first"][1]  # whose k it is
    for level in LEVELS:
        (k,) = content["cells"][f"k for attention weight {level}"]["value"]
        axes.plot([0.9, k, k], [level, level, 0], color=color, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
        box = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1}
        plot.note(axes, f"{level:g} at k = {k:.0f}", (k, level), (6, -4), color=color, va="top", bbox=box)
    plot.label(axes, y="share of the attention weight")
    axes.set_ylim(0, 1.02)
    return figure


def _curves(artefact: Path, measure: str, options: Mapping[str, Any]) -> tuple[Figure, Axes, dict[str, Any]]:
    content = read_artefact(artefact)
    std, counts = options.get("std", "std"), content["k"]
    figure, axes = plot.new_panels(6.4, 4.0)
    for name in options.get("groups", content["groups"]):
        text, color = GROUPS[name]
        group = content["groups"][name]
        mean, deviation = np.array(group["mean"]), np.array(group[std])
        highest = 1.0 if measure == "cumulative" else np.inf  # neither a distance nor a share can be outside
        band = (mean - deviation).clip(0), (mean + deviation).clip(max=highest)
        axes.fill_between(counts, *band, color=color, alpha=0.12, linewidth=0)
        for curve in (curve for layer in group["heads"] for curve in layer if name != "gaussian"):
            axes.plot(counts, curve, color=color, linewidth=0.6, alpha=0.45)
        axes.plot(counts, mean, color=color, linewidth=2.2, label=text)
    model_k = max(content["num_keys"])
    axes.axvline(model_k, color=plot.FAINT, linewidth=0.8, zorder=1)
    plot.note(axes, f"the model's k = {model_k}", (model_k, 1), (0, 3), xycoords=("data", "axes fraction"), ha="center")
    plot.tidy(axes)
    plot.logarithmic(axes)
    axes.set_xlim(0.9, counts[-1] * 1.1)
    public, sizes = "public_order" in content, content["nodes"]
    nodes = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else f"{max(sizes)}"
    plot.label(axes, f"k (keys of each query; {len(sizes)} graphs of {nodes} nodes)")
    title = f"thick: mean, band: standard deviation over {SPREADS[std]}, thin: single heads" + PUBLIC * public
    place = {"loc": "outside upper left", "ncols": 3, "alignment": "left"}
    legend = figure.legend(fontsize=8.5, title_fontsize=8, title=title, **place, **plot.LEGEND)
    legend.get_title().set_color(plot.INK)
    return figure, axes, content


def draw_energy_distances(artefact: Path) -> Figure:
    """Draw the energy distance to the widest networks over the width, a panel for each attention graph.

    Thick: mean over the layers, thin: single layers, broken: the two baselines; the widest is compared in halves.

    Args:
        artefact: a file of ``run/narrow_estimators.py``.
    """
    content = read_artefact(artefact)
    panels = content["edges"]
    figure, (places,) = plot.new_panels(1 + 3.4 * len(panels), 3.5, 1, len(panels), squeeze=False, sharey=True)
    for axes, (edges, panel) in zip(places, panels.items(), strict=True):
        _draw_widths(axes, panel["distances"], content["reference"])
        sizes = f"{panel['nodes']:,} nodes, {panel['num_edges']:,} edges"
        plot.label(axes, title=f"{EDGES[edges]}\n{sizes}", size=8.5)
    plot.label(places[0], y=f"energy distance to width {content['reference']}")
    figure.legend(*places[0].get_legend_handles_labels(), ncols=2, **plot.LEGEND_BELOW)
    return figure


def _draw_widths(axes: Axes, distances: Mapping[str, list[float]], reference: int) -> None:
    widths = sorted(int(name) for name in distances if name not in BASELINES)
    curves = list(zip(*(distances[str(width)] for width in widths), strict=True))  # of each layer
    mean = [sum(distances[str(width)]) / len(curves) for width in widths]
    for number, curve in enumerate(curves):
        text = None if number else "single layers"
        axes.plot(widths, curve, color=plot.PALETTE[0], linewidth=0.7, alpha=0.5, label=text)
    axes.plot(widths, mean, linewidth=2, label="mean over layers", **plot.series_style(0))
    for name, (text, color) in BASELINES.items():
        height = sum(distances[name]) / len(distances[name])
        axes.axhline(height, color=color, linewidth=1.2, linestyle=plot.DASHED, label=text)
    axes.axhline(0, color=plot.FAINT, linewidth=0.8)
    plot.log2_ticks(axes, widths, [f"{width}\n(halves)" if width == reference else str(width) for width in widths])
    plot.label(axes, "width of the estimator")
    plot.tidy(axes)
