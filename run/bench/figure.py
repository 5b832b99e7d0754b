"""Pictures of a record: lines over the size as in the k-MIP paper's figure 2, stages as in its figure 3."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from graphgps_kmip.report.style import FAINT, INK, save, tidy
from run.bench.bench_records import Record, Row

# Okabe and Ito's palette without its yellow, which is too faint for a line.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^v<>ph"
STAGES = {"search": "#0072B2", "softmax": "#E69F00", "gather": "#009E73", "backward": "#CC79A7"}
STAGE_NAMES = {
    "search": "search (full: scores)",
    "softmax": "softmax",
    "gather": "gather and weighted sum",
    "backward": "backward",
}
ENLARGED = 4  # times the fastest: what is drawn a second time, enlarged


def draw_sizes(record: Record, path: Path) -> Path:
    """Draw time and peak memory over the number of nodes, both logarithmic, one line for each contestant."""
    figure = Figure(figsize=(11.5, 4.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    _lines(left, record["rows"], "total_ms", "median time of a pass")
    left.yaxis.set_major_formatter(FuncFormatter(_duration))
    _lines(
        right, [row for row in record["rows"] if row.get("memory_mib")], "memory_mib", "peak memory above the inputs"
    )
    right.yaxis.set_major_formatter(FuncFormatter(_size))
    _legend(figure, left)
    _title(figure, record)
    return save(figure, path)


def draw_layers(record: Record, path: Path) -> Path:
    """Draw time over the number of nodes of single graphs, and bars for the batch."""
    single = [row for row in record["rows"] if row["data"] == "single"]
    batch = [row for row in record["rows"] if row["data"] != "single"]
    figure = Figure(figsize=(11.5, 4.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    _lines(left, single, "total_ms", "forward and backward of one layer")
    left.yaxis.set_major_formatter(FuncFormatter(_duration))
    _stacked(right, batch, {"forward": "#0072B2", "backward": "#CC79A7"}, {})
    if batch:
        graphs, nodes, _ = batch[0]["data"].removeprefix("batch:").split("x")
        right.set_title(f"a batch of {graphs} graphs of {nodes} nodes", fontsize=10, color=INK)
        right.legend(loc="lower center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False, fontsize=8.5)
    left.legend(loc="upper left", frameon=False, fontsize=8.5, labelcolor=INK)
    _title(figure, record)
    return save(figure, path)


def draw_breakdown(record: Record, path: Path) -> Path:
    """Draw the stages of a training pass as stacked bars: all at one scale, and again without the slowest."""
    rows = [row for row in record["rows"] if row["n"] == max(row["n"] for row in record["rows"])]
    figure = Figure(figsize=(11.5, 1.8 + 0.34 * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2)
    _stacked(left, rows, STAGES, STAGE_NAMES)
    fastest = min((row["total_ms"] for row in rows if row["status"] == "ok"), default=0.0)
    quick = [row for row in rows if row["status"] == "ok" and row["total_ms"] <= ENLARGED * fastest]
    _stacked(right, quick, STAGES, STAGE_NAMES)
    left.set_title("all at one scale", fontsize=10, color=INK)
    right.set_title(f"up to {ENLARGED} times the fastest, enlarged", fontsize=10, color=INK)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9, labelcolor=INK)
    _title(figure, record, f"n = {rows[0]['n']}")
    return save(figure, path)


def _lines(axes: Axes, rows: list[Row], key: str, label: str) -> None:
    names = list(dict.fromkeys(row["contestant"] for row in rows))
    for name, style in zip(names, _styles(names), strict=True):
        points = [(row["n"], row[key]) for row in rows if row["contestant"] == name and row.get(key)]
        if points:
            axes.plot(*zip(*points, strict=True), label=name, markersize=4.5, markeredgecolor="white", **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    tidy(axes)
    axes.set_xlabel("number of nodes", fontsize=10, color=INK)
    axes.set_title(label, fontsize=10, color=INK)


def _styles(names: list[str]) -> list[dict[str, object]]:
    """Ours solid and in colour, all others dashed, the frozen baselines grey."""
    styles, ours, others = [], 0, 0
    for name in names:
        if "frozen" in name or "matmul" in name or name == "no attention":
            style = {"color": FAINT, "linestyle": ":" if "frozen" in name else "--", "linewidth": 1.6}
        elif name.endswith("ours: auto"):  # lies on the line of the backend that it took
            style = {"color": INK, "linestyle": (0, (1, 2)), "linewidth": 2.2, "zorder": 4}
        elif "ours" in name or name == "kMIP":
            style = {"color": COLORS[ours % len(COLORS)], "linestyle": "-", "linewidth": 1.9}
            ours += 1
        else:
            style = {"color": COLORS[(others + 3) % len(COLORS)], "linestyle": "--", "linewidth": 1.3}
            others += 1
        styles.append(style | {"marker": MARKERS[len(styles) % len(MARKERS)]})
    return styles


def _stacked(axes: Axes, rows: list[Row], stages: dict[str, str], words: dict[str, str]) -> None:
    """One horizontal bar for each contestant, its stages one after the other; without a result, the reason."""
    longest = max((row["total_ms"] for row in rows if row["status"] == "ok"), default=1.0)
    for place, row in enumerate(rows):
        if row["status"] != "ok":
            axes.text(0, place, f" {row['status'][:48]}", va="center", fontsize=8, color=FAINT)
            continue
        start = 0.0
        for stage, color in stages.items():
            width = row.get(f"{stage}_ms", 0.0)
            label = words.get(stage, stage) if not any(row["status"] == "ok" for row in rows[:place]) else None
            axes.barh(place, width, left=start, color=color, height=0.68, label=label)
            start += width
        axes.text(start + 0.01 * longest, place, _duration(row["total_ms"], 0), va="center", fontsize=8, color=INK)
    tidy(axes)
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(rows)), [row["contestant"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, longest * 1.14)
    axes.xaxis.set_major_formatter(FuncFormatter(_duration))


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8.5, labelcolor=INK)


def _title(figure: Figure, record: Record, more: str = "") -> None:
    options, machine = record["options"], record["machine"]
    parts = [options["setting"], options["data"], more, f"d = {options['dims']}", f"k = {options['k']}"]
    parts += [f"{options['heads']} heads" if options["heads"] > 1 else "", f"{machine.get('gpu', machine['cpu'])}"]
    parts += [f"{machine['threads']} thread{'s' * (machine['threads'] > 1)}", record["created"][:10], record["code"]]
    text = ", ".join(part for part in parts if part)
    figure.suptitle(text, x=0.01, ha="left", fontsize=10, color=INK, fontweight="bold")


def _duration(milliseconds: float, _: object) -> str:
    """Write a time in the unit that leaves a short number."""
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.3g} s"
    return f"{milliseconds:.3g} ms" if milliseconds >= 0.1 or milliseconds == 0 else f"{1000 * milliseconds:.3g} µs"


def _size(mib: float, _: object) -> str:
    return f"{mib / 1024:.3g} GiB" if mib >= 1024 else f"{float(f'{mib:.3g}'):g} MiB"
