"""Figures of attention graphs: a graph next to what each layer and head attends to in it, and out-degrees by layer.

Thesis, figures 6.8, 6.9, B.1 to B.6 (graphs) and 6.10 (out-degrees: how often nodes are selected as keys).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from graphgps_kmip.common.atomic_write import read_artefact
from graphgps_kmip.report.learning_curves import FAINT, INK, PALETTE, label, new_panels, note, save, tidy

Arrays = Mapping[str, np.ndarray]

CELL = 2.5  # inches: side of one panel
EDGE = np.array([0.10, 0.18, 0.32])  # dark blue: carries opacity well on white
BEND = 0.09  # height of the arc of an edge, as a share of its length
CLEAR_EDGES = 400  # up to here the edges of a panel are distinguishable at full opacity
# Light to dark in one direction, so it reads in grey and with any colour vision.
DEGREE_MAP = LinearSegmentedColormap.from_list("degree", ["#FFF3D6", "#FDBB63", "#E8623C", "#8E1B3A", "#2D0A33"])
MULTIPLES = (1, 2, 4)  # of k, which is the mean out-degree where no graph has fewer nodes
PANEL = (3.3, 1.7)  # inches
SIDES = ("share of the nodes", "share of the edges that leave them")


def draw_attention(npz_path: Path | str, png_path: Path | str) -> Path:
    """Draw the picture of `draw_attention_graphs` to `png_path`, and return that."""
    return save(draw_attention_graphs(Path(npz_path)), Path(png_path))


def draw_attention_graphs(artefact: Path) -> Figure:
    """Draw the input graph (left) and a grid of learned attention graphs, one row a layer and one column a head.

    An edge runs from key (wide end) to query (point); its opacity is its weight, that of a node its out-degree; the
    weight of a node on itself is not drawn.

    Args:
        artefact: npz file of main.py or of ``run/analyse.py graphs`` with the arrays `pos`, `value` (ink),
            `edge_index`, `label`, `prediction`, and of each layer l = 0, 1, ... `index_l` (row of the key, -1 = none)
            and `weight_l`.

    Shapes: pos `(N, 2)`, value `(N,)`, edge_index `(2, E)`, index_l and weight_l `(H, N, K)`.
    """
    with np.load(artefact) as file:
        arrays = {name: file[name] for name in file.files}
    layers = [(arrays[f"index_{i}"], arrays[f"weight_{i}"]) for i in range(len(arrays)) if f"index_{i}" in arrays]
    rows, columns = len(layers), max(len(index) for index, _ in layers)
    # `(H, N, K) -> (H, N)`: the queries of each head that select each node
    degrees = [
        np.stack([np.bincount(head[head >= 0], minlength=len(arrays["pos"])) for head in index]) for index, _ in layers
    ]
    norm = PowerNorm(0.5, 0, max(1, *(int(degree.max()) for degree in degrees)))
    across, down = np.ptp(arrays["pos"], axis=0).clip(1e-9)
    cell, first = CELL * np.clip(across / down, 0.6, 2), min(rows, 1.6)
    figure = Figure(figsize=(cell * (columns + first) + 1.0, CELL * rows + 0.4), layout="constrained")
    grid = figure.add_gridspec(rows, columns + 1, width_ratios=[first] + [1] * columns)
    _draw_input(figure.add_subplot(grid[:, 0]), arrays)
    panels = []
    for row, ((index, weight), degree) in enumerate(zip(layers, degrees, strict=True)):
        for head in range(len(index)):
            axes = figure.add_subplot(grid[row, head + 1])
            _draw_head(axes, arrays["pos"], index[head], weight[head], degree[head], norm)
            axes.set_title(f"layer {row + 1}, head {head + 1}", fontsize=9, color=INK, pad=3)
            panels.append(axes)
    bar = figure.colorbar(ScalarMappable(norm, DEGREE_MAP), ax=panels, shrink=0.7, aspect=25, pad=0.015)
    bar.set_label("out-degree: times selected", fontsize=9, color=INK)
    bar.ax.tick_params(labelsize=8, colors=INK)
    bar.outline.set_visible(False)
    return figure


def _frame(axes: Axes, pos: np.ndarray) -> None:
    low, high = pos.min(0), pos.max(0)
    margin = 0.1 * ((high - low).max() or 1.0)
    limits = {"xlim": (low[0] - margin, high[0] + margin), "ylim": (low[1] - margin, high[1] + margin)}
    axes.set(aspect="equal", xticks=[], yticks=[], **limits)
    for spine in axes.spines.values():
        spine.set(color="#D8DEE4", linewidth=0.8)


def _node_area(num_nodes: int) -> float:
    return float(np.clip(2600 / num_nodes, 8, 70))  # points^2: nodes shrink as they crowd


def _draw_input(axes: Axes, arrays: Arrays) -> None:
    pos, (source, target) = arrays["pos"], arrays["edge_index"]
    segments = np.stack([pos[source], pos[target]], axis=1)
    axes.add_collection(LineCollection(segments, colors=FAINT, linewidths=0.6, alpha=0.45, zorder=1))
    look = {"c": arrays["value"], "cmap": "Greys", "vmin": 0, "edgecolors": INK, "linewidths": 0.5, "zorder": 2}
    axes.scatter(*pos.T, s=1.5 * _node_area(len(pos)), **look)
    _frame(axes, pos)
    target_class, prediction = (int(arrays[name].ravel()[0]) for name in ("label", "prediction"))
    axes.set_title(f"input graph\nlabel {target_class}, predicted {prediction}", fontsize=10, color=INK, pad=5)
    axes.set_xlabel("attention: key (wide)\nto query (point),\nopacity = weight", fontsize=8, color=INK, labelpad=7)


def _draw_head(
    axes: Axes, pos: np.ndarray, index: np.ndarray, weight: np.ndarray, degree: np.ndarray, norm: Normalize
) -> None:
    query, slot = np.nonzero(index >= 0)
    key, weight = index[query, slot], weight[query, slot]
    crowd = min(1.0, CLEAR_EDGES / max(1, len(key)))  # many edges: thinner and fainter, all alike
    alpha = np.clip(weight, 0, 1) * crowd**0.5
    colors = np.concatenate([np.broadcast_to(EDGE, (len(key), 3)), alpha[:, None]], axis=1)
    width = 0.012 * np.ptp(pos, axis=0).max() * crowd**0.5
    blades = _blades(pos[key], pos[query], width)
    axes.add_collection(PolyCollection(blades, facecolors=colors, linewidths=0, zorder=1))
    area = _node_area(len(pos))
    look = {"c": degree, "cmap": DEGREE_MAP, "norm": norm, "edgecolors": INK, "linewidths": 0.05 * area**0.5}
    axes.scatter(*pos.T, s=area, zorder=2, **look)
    _frame(axes, pos)


def _blades(start: np.ndarray, end: np.ndarray, width: float, points: int = 8) -> np.ndarray:
    """Return shapes, wide at `start`, pointed at `end`, bent to one side: `(E, 2), (E, 2) -> (E, 2 * points, 2)`."""
    step = end - start
    normal = np.stack([-step[:, 1], step[:, 0]], axis=1)
    unit = normal / np.linalg.norm(normal, axis=1, keepdims=True).clip(1e-12)
    t = np.linspace(0, 1, points)[:, None, None]
    spine = start + t * step + BEND * 4 * t * (1 - t) * normal  # (points, E, 2)
    side = width * (1 - t) * unit
    return np.concatenate([spine + side, (spine - side)[::-1]]).transpose(1, 0, 2)


def draw_out_degrees(artefact: Path, options: Mapping[str, Any]) -> Figure:
    """Draw for each layer which share of nodes has an out-degree in each bin, and which share of edges leaves them.

    Bars are means over models, whiskers their sample standard deviation, as in the tables.

    Args:
        artefact: a file of ``run/analyse.py degrees``.
        options: ``bins``: where bins after the first begin; by default at k, 2k and 4k.
    """
    content = read_artefact(artefact)
    starts = [0, *options.get("bins", [multiple * max(content["num_keys"]) for multiple in MULTIPLES])]
    layers = list(zip(*content["counts"], strict=True))  # of each layer, the counts of each model
    size = 2 * PANEL[0], PANEL[1] * len(layers) + 0.5
    figure, panels = new_panels(*size, len(layers), 2, squeeze=False, sharex=True, sharey=True)
    for number, (pair, models) in enumerate(zip(panels, layers, strict=True), start=1):
        shares = np.array([binned(counts, starts) for counts in models])  # (models, 2, bins)
        for axes, share in zip(pair, shares.transpose(1, 0, 2), strict=True):
            _draw_bars(axes, share, f"layer {number}" if axes is pair[0] else "")
    names = [f"{low} to {high - 1}" if high - low > 1 else f"{low}" for low, high in itertools.pairwise(starts)]
    names.append(f"{starts[-1]} or more")
    for axes, side in zip(panels[0], SIDES, strict=True):
        label(axes, title=side, size=9.5)
    panels[0, 0].set_ylim(0, None)
    panels[0, 0].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for axes in panels[-1]:
        axes.set_xticks(range(len(names)), names)
    models = len(content["runs"])
    over = f"mean ± std over {models} models" if models > 1 else "one model"
    text = f"out-degree: queries that select a node ({over}, {content['graphs']} graphs)"
    figure.supxlabel(text, fontsize=9, color=INK)
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


def _draw_bars(axes: Axes, share: np.ndarray, layer: str) -> None:
    mean, std = share.mean(0), share.std(0, ddof=1) if len(share) > 1 else None
    error = {"ecolor": INK, "elinewidth": 1, "capsize": 3}
    axes.bar(range(len(mean)), mean, 0.7, yerr=std, color=PALETTE[0], error_kw=error)
    for at, value in enumerate(mean):
        top = value if std is None else value + std[at]
        text = f"{100 * value:.0f}" if value >= 0.01 or value == 0 else f"{100 * value:.1g}"
        note(axes, text, (at, top), (0, 2), ha="center")
    tidy(axes)
    axes.margins(y=0.2)
    label(axes, y=layer)
