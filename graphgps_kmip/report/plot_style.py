"""Plot style of all figures: colours, markers, axes, and saving as PNG or PDF in one step."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.results.run_folder import writing

# Okabe and Ito's palette: distinguishable with every kind of colour blindness.
COLORS = {"train": "#0072B2", "val": "#E69F00", "test": "#009E73"}
# The same for any number of series, without the yellow, which is too faint for a line.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP<>X"
INK = "#24292F"
FAINT = "#8C959F"


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


def logarithmic(axes: Axes) -> None:
    """Make the axis of time logarithmic, with plain numbers also where it spans less than a power of ten."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def save(figure: Figure, path: Path, dpi: int = 160, tight: bool = False) -> Path:
    """Write a PNG or PDF, as the name ends, at once: a reader finds the earlier picture or the new one.

    Args:
        figure: what is written.
        path: where it goes.
        dpi: dots an inch of a PNG, and of what is rastered in a PDF.
        tight: the page is as large as what is drawn, beyond the figure's edges too.

    Raises:
        RunFolderError: it cannot be written; an earlier picture is as it was.
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
