"""Figures of k-MIP attention against full attention over k: distance, and cumulative attention weight.

Thesis, figures 6.6 and 6.7; k-MIP paper, figure 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from graphgps_kmip.common.json_files import read_artefact
from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report.learning_curves import FAINT, INK, PALETTE, logarithmic, tidy

GROUPS = {
    "first": ("first layer", PALETTE[1]),
    "others": ("other layers", PALETTE[0]),
    "gaussian": ("Gaussian inputs", FAINT),
}
SPREADS = {"std": "graphs, layers and heads", "std_graphs": "graphs"}
PUBLIC = "\ndotted: the k keys of smallest inner product and k + 1 terms in the sum, as in the public script"
LEVELS = (0.5, 0.8)  # of the weight: both papers name the k that reaches them


def draw_approximation(artefact: Path, options: Mapping[str, Any]) -> Figure:
    """Draw the distance between k-MIP and full attention over k, and that of Gaussian samples as a broken line.

    Thick lines are means over graphs, layers and heads, bands a standard deviation, thin lines single heads. Dotted
    lines are the means with the keys in the order of the public script, where the file has them.

    Args:
        artefact: a file of ``run/analyse.py distance``.
        options: ``groups``: ``first`` and ``others`` of the layers, ``gaussian`` queries, keys and values (default: all
            that the file has); ``std``: ``std`` over graphs, layers and heads (default), ``std_graphs`` over graphs.

    Raises:
        ValueError: the file or an option does not fit.
    """
    figure, axes, content = _curves(artefact, "distance", options)
    groups = _groups(content, options)
    references = {name: content["reference"][name] for name in groups if name != "gaussian"}
    highest = max(references, key=lambda name: references[name]["mean"])
    for name, reference in references.items():
        mean, std, color = reference["mean"], reference[_std(options)], GROUPS[name][1]
        axes.axhline(mean, color=color, linewidth=1, linestyle=(0, (4, 3)))
        above = name == highest  # of two lines that lie close, the labels go apart
        at = {"textcoords": "offset points", "ha": "right", "va": "bottom" if above else "top"}
        text = f"samples of N(0, I) in place of k-MIP: {mean:.2f} ± {std:.2f}"
        axes.annotate(text, (content["k"][-1], mean), (0, 3 if above else -3), fontsize=8, color=color, **at)
    for name in groups if "public_order" in content else ():
        mean = content["public_order"][name]["mean"]
        axes.plot(content["k"], mean, color=GROUPS[name][1], linewidth=2.2, linestyle=(0, (1, 1.2)))
    axes.set_ylabel("L2 distance to full attention", fontsize=9, color=INK)
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    return figure


def draw_cumulative(artefact: Path, options: Mapping[str, Any]) -> Figure:
    """Draw the share of the attention weight on the k keys of largest score, with its values at 0.5 and 0.8.

    Args:
        artefact: a file of ``run/analyse.py cumulative``.
        options: as `draw_approximation`, with the group ``gaussian``.

    Raises:
        ValueError: the file or an option does not fit.
    """
    figure, axes, content = _curves(artefact, "cumulative", options)
    color = GROUPS["others" if "others" in content["groups"] else "first"][1]  # whose k it is
    for level in LEVELS:
        (k,) = content["cells"][f"k for attention weight {level}"]["value"]
        axes.plot([0.9, k, k], [level, level, 0], color=color, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
        text = axes.annotate(f"{level:g} at k = {k:.0f}", (k, level), (6, -4), textcoords="offset points", fontsize=8)
        text.set(color=color, va="top", bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1})
    axes.set_ylabel("share of the attention weight", fontsize=9, color=INK)
    axes.set_ylim(0, 1.02)
    return figure


def _curves(artefact: Path, measure: str, options: Mapping[str, Any]) -> tuple[Figure, Axes, dict[str, Any]]:
    content = read_artefact(artefact)
    if content.get("measure") != measure:
        raise ResultsError(f"{artefact} does not hold the measure {measure!r}: make it with run/analyse.py {measure}")
    std, counts = _std(options), content["k"]
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for name in _groups(content, options):
        label, color = GROUPS[name]
        group = content["groups"][name]
        mean, deviation = np.array(group["mean"]), np.array(group[std])
        highest = 1.0 if measure == "cumulative" else np.inf  # neither a distance nor a share can be outside
        band = (mean - deviation).clip(0), (mean + deviation).clip(max=highest)
        axes.fill_between(counts, *band, color=color, alpha=0.12, linewidth=0)
        for curve in (curve for layer in group["heads"] for curve in layer if name != "gaussian"):
            axes.plot(counts, curve, color=color, linewidth=0.6, alpha=0.45)
        axes.plot(counts, mean, color=color, linewidth=2.2, label=label)
    own = max(content["num_keys"])
    axes.axvline(own, color=FAINT, linewidth=0.8, zorder=1)
    at = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "center"}
    axes.annotate(f"the model's k = {own}", (own, 1), (0, 3), fontsize=8, color=INK, **at)
    tidy(axes)
    logarithmic(axes)
    axes.set_xlim(0.9, counts[-1] * 1.1)
    public, sizes = "public_order" in content, content["nodes"]
    nodes = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else f"{max(sizes)}"
    axes.set_xlabel(f"k (keys of each query; {len(sizes)} graphs of {nodes} nodes)", fontsize=9, color=INK)
    legend = figure.legend(
        loc="outside upper left", ncols=3, frameon=False, fontsize=8.5, labelcolor=INK, title_fontsize=8,
        title=f"thick: mean, band: standard deviation over {SPREADS[std]}, thin: single heads" + PUBLIC * public,
        alignment="left",
    )  # fmt: skip
    legend.get_title().set_color(INK)
    return figure, axes, content


def _groups(content: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
    for name in options.get("groups", ()):
        if name not in content["groups"]:
            raise ResultsError(f"groups: the analysis has no {name!r}.{suggest(name, content['groups'])}")
    return list(options.get("groups", content["groups"]))


def _std(options: Mapping[str, Any]) -> str:
    name = options.get("std", "std")
    if name not in SPREADS:
        raise ResultsError(f"std: {name!r} is none of the standard deviations.{suggest(name, SPREADS)}")
    return name
