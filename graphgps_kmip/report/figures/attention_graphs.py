"""A graph in the plane beside what every layer and head attends to in it (thesis, "attention graphs": out-degree)."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize, PowerNorm
from matplotlib.figure import Figure

from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report.plot_style import FAINT, INK, save

Arrays = Mapping[str, np.ndarray]

CELL = 2.5  # inches: side of one panel
EDGE = np.array([0.10, 0.18, 0.32])  # dark blue: carries opacity well on white
BEND = 0.09  # height of the arc of an edge, as a share of its length
CLEAR_EDGES = 400  # up to here the edges of a panel can be told apart at full opacity
# Light to dark in one direction, so it reads in grey and with any colour vision.
DEGREE_MAP = LinearSegmentedColormap.from_list("degree", ["#FFF3D6", "#FDBB63", "#E8623C", "#8E1B3A", "#2D0A33"])


def draw_attention(npz_path: Path | str, png_path: Path | str) -> Path:
    """Draw the picture of `attention_figure` to `png_path`, and return that."""
    return save(attention_figure(npz_path), Path(png_path))


def attention_figure(npz_path: Path | str) -> Figure:
    """Draw the input graph (left) and a grid of learned attention graphs, one row a layer and one column a head.

    An edge runs from key (wide end) to query (point); its opacity is its weight, in a crowded panel times a common
    factor; the weight of a node on itself is not drawn. The colour of a node is its out-degree: how many queries of
    that head select it as a key.

    Args:
        npz_path: arrays `pos`, `value` (ink), `edge_index`, `label`, `prediction`, and of each layer l = 0, 1, ...
            `index_l` (row of the key, -1 = none) and `weight_l`.

    Shapes: pos `(N, 2)`, value `(N,)`, edge_index `(2, E)`, index_l and weight_l `(H, N, K)`.

    Raises:
        ValueError: an array is missing.
    """
    try:
        with np.load(npz_path) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:  # the last: a single array, no archive
        raise ResultsError(f"{npz_path} is damaged ({error}): delete it, and main.py makes it again") from error
    layers = [(arrays[f"index_{i}"], arrays[f"weight_{i}"]) for i in range(len(arrays)) if f"index_{i}" in arrays]
    missing = {"pos", "value", "edge_index", "label", "prediction"} - set(arrays)
    if missing or not layers:
        raise ResultsError(
            f"{npz_path} has no {', '.join(sorted(missing)) or 'layer (index_0, weight_0)'}; save it again."
        )
    rows, columns = len(layers), max(len(index) for index, _ in layers)
    degrees = [_out_degree(index, len(arrays["pos"])) for index, _ in layers]
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
    _add_color_bar(figure, panels, norm)
    return figure


def _out_degree(index: np.ndarray, num_nodes: int) -> np.ndarray:
    """Count the queries of each head that select each node: `(H, N, K) -> (H, N)`."""
    return np.stack([np.bincount(head[head >= 0], minlength=num_nodes) for head in index])


def _frame(axes: Axes, pos: np.ndarray) -> None:
    """Show the points with y upwards, at equal scale, without ticks."""
    low, high = pos.min(0), pos.max(0)
    margin = 0.1 * ((high - low).max() or 1.0)
    axes.set_xlim(low[0] - margin, high[0] + margin)
    axes.set_ylim(low[1] - margin, high[1] + margin)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(color="#D8DEE4", linewidth=0.8)


def _node_area(num_nodes: int) -> float:
    return float(np.clip(2600 / num_nodes, 8, 70))  # points^2: nodes shrink as they crowd


def _draw_input(axes: Axes, arrays: Arrays) -> None:
    pos, (source, target) = arrays["pos"], arrays["edge_index"]
    segments = np.stack([pos[source], pos[target]], axis=1)
    axes.add_collection(LineCollection(segments, colors=FAINT, linewidths=0.6, alpha=0.45, zorder=1))
    axes.scatter(
        *pos.T,
        s=1.5 * _node_area(len(pos)),
        c=arrays["value"],
        cmap="Greys",
        vmin=0,
        edgecolors=INK,
        linewidths=0.5,
        zorder=2,
    )
    _frame(axes, pos)
    label, prediction = int(arrays["label"].ravel()[0]), int(arrays["prediction"].ravel()[0])
    axes.set_title(f"input graph\nlabel {label}, predicted {prediction}", fontsize=10, color=INK, pad=5)
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
    axes.scatter(
        *pos.T,
        s=_node_area(len(pos)),
        c=degree,
        cmap=DEGREE_MAP,
        norm=norm,
        edgecolors=INK,
        linewidths=0.05 * _node_area(len(pos)) ** 0.5,
        zorder=2,
    )
    _frame(axes, pos)


def _blades(start: np.ndarray, end: np.ndarray, width: float, points: int = 8) -> np.ndarray:
    """Return curved shapes, wide at `start`, pointed at `end`: `(E, 2), (E, 2) -> (E, 2 * points, 2)`.

    They bend to one side, so that edges along one line of pixels, and the two directions of a pair, stay apart.
    """
    step = end - start
    normal = np.stack([-step[:, 1], step[:, 0]], axis=1)
    unit = normal / np.linalg.norm(normal, axis=1, keepdims=True).clip(1e-12)
    t = np.linspace(0, 1, points)[:, None, None]
    spine = start + t * step + BEND * 4 * t * (1 - t) * normal  # (points, E, 2)
    side = width * (1 - t) * unit
    return np.concatenate([spine + side, (spine - side)[::-1]]).transpose(1, 0, 2)


def _add_color_bar(figure: Figure, panels: list[Axes], norm: Normalize) -> None:
    bar = figure.colorbar(ScalarMappable(norm, DEGREE_MAP), ax=panels, shrink=0.7, aspect=25, pad=0.015)
    bar.set_label("out-degree: times selected", fontsize=9, color=INK)
    bar.ax.tick_params(labelsize=8, colors=INK)
    bar.outline.set_visible(False)
