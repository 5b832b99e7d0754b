"""Figures of the ball tree search: visited nodes and time over the number of keys, with fitted powers (thesis, 6.3)."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from graphgps_kmip.common.atomic_write import read_artefact
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report.learning_curves import FAINT, INK, LEGEND, label, new_panels, save, series_style, tidy

Row = dict[str, Any]

FIT_FROM = 1000  # keys; below, the fixed cost of a call (0.2 ms) is most of the time
LOW_DIM = 4  # up to here the linear scale of figure 6.3b shows the curves whole


def fits(rows: list[Row], key: str) -> list[Row]:
    """Fit a power of N, and what theory expects of a tree in few dimensions; each with its coefficient R2.

    ``a N^b`` and ``a N log N`` (seconds, from ``FIT_FROM`` keys on) are fitted to logarithms; ``a log N + b`` (visited)
    to the values.
    """
    rows = [row for row in rows if key == "visited" or row["n"] >= FIT_FROM]
    if len(rows) < 3:
        return []
    value, log_n = [row[key] for row in rows], [math.log(row["n"]) for row in rows]
    log_value = [math.log(y) for y in value]
    b, log_a = statistics.linear_regression(log_n, log_value)
    power = {"curve": "a N^b", "a": math.exp(log_a), "b": b, "r2": _r2(log_value, [log_a + b * x for x in log_n])}
    if key == "visited":
        a, b = statistics.linear_regression(log_n, value)
        return [power, {"curve": "a log N + b", "a": a, "b": b, "r2": _r2(value, [a * x + b for x in log_n])}]
    log_curve = [x + math.log(x) for x in log_n]
    log_a = statistics.mean(log_value) - statistics.mean(log_curve)
    r2 = _r2(log_value, [log_a + x for x in log_curve])
    return [power, {"curve": "a N log N", "a": math.exp(log_a), "r2": r2}]


def all_fits(rows: list[Row]) -> list[Row]:
    """Return the fits of every method and dimension, in the order of the rows."""
    result = []
    for (part, name, dim), group in _series(rows):
        key = "visited" if part == "nodes" else "seconds"
        result += [{"part": part, "contestant": name, "dim": dim} | fit for fit in fits(group, key)]
    return result


def draw_ball_tree_nodes(artefact: Path) -> Figure:
    """Draw the mean number of visited nodes, one line for each dimension (figure 6.3), from the one artefact."""
    return _nodes(_rows(artefact, "nodes"))


def draw_ball_tree_time(artefact: Path) -> Figure:
    """Draw the seconds of every search, one panel for each dimension (figure 6.4), from the one artefact."""
    return _time(_rows(artefact, "time"))


def draw(record: dict[str, Any], stem: Path) -> list[Path]:
    """Draw one picture for each part that was measured, next to the record; return their paths."""
    paths = []
    for part, draw_part in (("nodes", _nodes), ("time", _time)):
        rows = [row for row in record["rows"] if row["part"] == part]
        if rows:
            figure, machine = draw_part(rows), record["machine"]
            threads = f"{machine['threads']} thread{'s' * (machine['threads'] > 1)}"
            where = [machine["cpu"], threads, record["created"][:10], record["code"]]
            figure.suptitle(f"{figure.get_suptitle()}, {', '.join(where)}", x=0.01, ha="left", fontsize=10, color=INK)
            paths.append(save(figure, stem.with_name(f"{stem.name}-{part}.png")))
    return paths


def _rows(artefact: Path, part: str) -> list[Row]:
    rows = [row for row in read_artefact(artefact)["rows"] if row["part"] == part]
    if not rows:
        raise ResultsError(f"{artefact} holds no row of part {part}: run python -m run.bench.tree --part {part}")
    return rows


def _nodes(rows: list[Row]) -> Figure:
    figure, axes = new_panels(9.5, 3.9, 1, 2)
    series = _series(rows)
    shades = matplotlib.colormaps["viridis_r"]
    for place, ((_, _, dim), group) in enumerate(series):
        points = [row["n"] for row in group], [row["visited"] for row in group]
        color = shades(0.12 + 0.88 * place / max(1, len(series) - 1))
        for each in axes:
            each.plot(*points, color=color, marker="o", markersize=4, linewidth=1.8, label=f"{dim}")
    sizes = [row["n"] for row in series[0][1]]
    axes[0].plot(sizes, [2 * n - 1 for n in sizes], color=FAINT, linestyle="--", linewidth=1.2, label="all nodes")
    axes[0].set_yscale("log")
    low = [row["visited"] for row in rows if row["dim"] <= LOW_DIM]
    axes[1].set_ylim(0, 1.25 * max(low or [row["visited"] for row in rows]))
    for each, title in zip(axes, ("both logarithmic", "a straight line is logarithmic growth"), strict=True):
        each.set_xscale("log")
        tidy(each)
        label(each, "number of keys N", title=title, size=10)
    label(axes[0], y="mean nodes visited per query")
    legend = figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=9, **LEGEND)
    legend.set_title("dimensions", {"size": 9})
    title = f"ball tree, leaf size {rows[0]['leaf_size']}, k = {rows[0]['k']}, {rows[0]['repeats']} trees"
    figure.suptitle(title, x=0.01, ha="left", fontsize=9, color=INK)
    return figure


def _time(rows: list[Row]) -> Figure:
    dims = sorted({row["dim"] for row in rows})
    names = list(dict.fromkeys(row["contestant"] for row in rows))
    figure, (panels,) = new_panels(9.5, 4.2, 1, len(dims), sharey=True, squeeze=False)
    for axes, dim in zip(panels, dims, strict=True):
        for (_, name, _), group in _series([row for row in rows if row["dim"] == dim]):
            _draw_fitted(axes, name, group, series_style(names.index(name)))
        axes.set(xscale="log", yscale="log")
        tidy(axes)
        label(axes, "number of keys N", title=f"{dim} dimensions", size=10)
        axes.legend(fontsize=8.5, loc="upper left", **LEGEND)
    bottom, top = panels[0].get_ylim()
    panels[0].set_ylim(bottom, top * (top / bottom) ** 0.35)  # room for the legends
    label(panels[0], y="seconds for all queries")
    title = f"exact search of {rows[0]['k']} keys, N keys and N queries"
    figure.suptitle(title, x=0.01, ha="left", fontsize=9, color=INK)
    return figure


def _draw_fitted(axes: Axes, name: str, rows: list[Row], style: dict[str, str]) -> None:
    """Measured points and the fitted power; the ball tree's expected curve dotted."""
    sizes, curves = [row["n"] for row in rows], fits(rows, "seconds")
    axes.plot(sizes, [row["seconds"] for row in rows], linestyle="", markersize=6, **style)
    if not curves:
        axes.plot([], [], linestyle="", markersize=6, label=f"{name}: too few sizes for a fit", **style)
        return
    sizes = [n for n in sizes if n >= FIT_FROM]
    power, expected = curves
    text = f"{name}: $N^{{{power['b']:.2f}}}$, $R^2$ = {power['r2']:.3f}"
    axes.plot([], [], label=text, linewidth=1.6, **style)
    axes.plot(sizes, [power["a"] * n ** power["b"] for n in sizes], color=style["color"], linewidth=1.6)
    if name == "ball_tree":
        text = f"{name}: $N \\log N$, $R^2$ = {expected['r2']:.3f}"
        curve = [expected["a"] * n * math.log(n) for n in sizes]
        axes.plot(sizes, curve, color=style["color"], linewidth=1.2, linestyle=":", label=text)


def _r2(values: list[float], fitted: list[float]) -> float:
    mean = statistics.mean(values)
    left = sum((y - f) ** 2 for y, f in zip(values, fitted, strict=True))
    return 1 - left / sum((y - mean) ** 2 for y in values)


def _series(rows: list[Row]) -> list[tuple[tuple[str, str, int], list[Row]]]:
    """Return the rows of one part, method and dimension together, each by size, in order of appearance."""
    series: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        series.setdefault((row["part"], row["contestant"], row["dim"]), []).append(row)
    return [(key, sorted(group, key=lambda row: row["n"])) for key, group in series.items()]
