"""Learning curves of one run, and the plot style of all figures: colours, markers, axes, saving as PNG and PDF."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.results.best_epoch import best_epoch
from graphgps_kmip.results.run_folder import writing
from graphgps_kmip.results.run_record import Line, metric_names, read_run

# Okabe and Ito's palette: distinguishable with every kind of colour blindness.
COLORS = {"train": "#0072B2", "val": "#E69F00", "test": "#009E73"}
# The same for any number of series, without the yellow, which is too faint for a line.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8250DF")
MARKERS = "osD^vP<>X"
INK = "#24292F"
FAINT = "#8C959F"
DASHED = (0, (4, 3))
LEGEND = {"frameon": False, "labelcolor": INK}
LEGEND_BELOW = {"loc": "outside lower center", "fontsize": 8.5, **LEGEND}
LOG_RATIO = 30  # a quantity that shrinks by more than this is drawn on a logarithmic axis


def series_style(place: int) -> dict[str, str]:
    """Return colour and marker of the series at a place: after seven colours, the next marker is used."""
    return {"color": PALETTE[place % len(PALETTE)], "marker": MARKERS[place % len(MARKERS)]}


def tidy(axes: Axes) -> None:
    """Leave two thin axes, a faint horizontal grid and small labels."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set(color=FAINT, linewidth=0.8)
    axes.grid(axis="y", color="#D8DEE4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9, width=0.8, color=FAINT)


def new_panels(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """Return a figure of this size in inches, and its axes: alone, or as an array."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def note(axes: Axes, text: str, point: tuple[float, float], offset: tuple[float, float], **look: Any) -> Annotation:
    """Write a text next to a point, `offset` in printer's points from it."""
    return axes.annotate(text, point, offset, textcoords="offset points", **{"fontsize": 8, "color": INK, **look})


def log2_ticks(axes: Axes, values: Sequence[float], texts: Sequence[str] | None = None) -> None:
    """Make the x-axis logarithmic, with ticks at these values alone."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, texts)
    axes.xaxis.set_minor_locator(NullLocator())


def label(axes: Axes, x: str = "", y: str = "", title: str = "", size: float = 9) -> None:
    """Write what the axes show."""
    for write, text in ((axes.set_xlabel, x), (axes.set_ylabel, y), (axes.set_title, title)):
        if text:
            write(text, fontsize=size, color=INK)


def logarithmic(axes: Axes) -> None:
    """Make the axis of time logarithmic, with plain numbers also where it spans less than a power of ten."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def save(figure: Figure, path: Path, dpi: int = 160, tight: bool = False) -> Path:
    """Write a PNG or PDF, as the name ends, at once.

    Args:
        figure: what is written.
        path: where it goes.
        dpi: dots an inch of a PNG, and of what is rastered in a PDF.
        tight: the page is as large as what is drawn, beyond the figure's edges too.
    """
    kind = path.suffix.removeprefix(".")
    # without its date, a PDF of the same numbers is the same file
    metadata = {"CreationDate": None} if kind == "pdf" else None
    size = {"bbox_inches": "tight", "pad_inches": 0.12} if tight else {}
    picture = io.BytesIO()
    figure.savefig(picture, format=kind, dpi=dpi, facecolor="white", metadata=metadata, **size)
    with writing(path, "The results that it shows are complete."):
        replace_file(path, picture.getvalue())
    return path


def draw_curves(run_dir: Path | str, metric_best: str = "auto", metric_agg: str = "argmax") -> Path:
    """Draw `<run_dir>/curves.png`: loss and metric over the epochs, the best epoch marked; return its path.

    Args:
        run_dir: folder of the run.
        metric_best: the metric that selects the epoch; `auto`: the lowest validation loss.
        metric_agg: `argmax` or `argmin`.
    """
    run_dir = Path(run_dir)
    run = read_run(run_dir)
    if not run:
        raise ResultsError(f"No results in {run_dir}; expected train/stats.json. Train the run first.")
    best = best_epoch(run, metric_best, metric_agg)
    lines = next(iter(run.values()))
    metrics = metric_names(lines[min(lines)]) if metric_best in ("auto", "loss") else [metric_best]
    names = {name for split_lines in run.values() for line in split_lines.values() for name in line}
    drawn = [name for name in ("loss", *metrics[:1]) if name in names]  # train.mode brec has no metric of the task
    figure = Figure(figsize=(10, 3.9), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        _draw_panel(axes, run, name, best)
    run_dir = run_dir.resolve()
    title = f"{run_dir.parent.name}, run {run_dir.name} (numbers: at the best epoch, {best})"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK, fontweight="bold")
    return save(figure, run_dir / "curves.png")


def _draw_panel(axes: Axes, run: dict[str, dict[int, Line]], name: str, best: int) -> None:
    axes.axvline(best, color=FAINT, linewidth=1, linestyle=DASHED, zorder=1)
    every_value = []
    for split, lines in run.items():
        values = {epoch: line[name] for epoch, line in lines.items() if name in line}
        marks = [list(values).index(best)] if best in values else []
        look = {"color": COLORS[split], "linewidth": 1.7, "marker": "o", "markersize": 6.5, "markeredgecolor": "white"}
        text = f"{split}  {values[best]:.4g}" if best in values else split
        axes.plot(list(values), list(values.values()), markevery=marks, label=text, **look)
        every_value += values.values()
    tidy(axes)
    label(axes, "epoch", name, size=10)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if min(every_value) > 0 and max(every_value) > LOG_RATIO * min(every_value):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    # Above the axes, where no curve can run through it.
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 3, "handlelength": 1.2, "columnspacing": 1.4}
    axes.legend(fontsize=9.5, **place, **LEGEND)
