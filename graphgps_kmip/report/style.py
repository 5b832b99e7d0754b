"""One look for all pictures: colours, figures without pyplot, quiet axes."""

from __future__ import annotations

import os
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart with every kind of colour blindness.
COLORS = {"train": "#0072B2", "val": "#E69F00", "test": "#009E73"}
INK = "#24292F"
FAINT = "#8C959F"


def tidy(axes: Axes) -> None:
    """Leave two thin axes, a faint horizontal grid and small labels."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set(color=FAINT, linewidth=0.8)
    axes.grid(axis="y", color="#D8DEE4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9, width=0.8, color=FAINT)


def save(figure: Figure, path: Path, dpi: int = 160) -> Path:
    """Write a PNG under a temporary name and rename it."""
    unfinished = path.with_name(f"{path.name}.tmp")
    figure.savefig(unfinished, format="png", dpi=dpi, facecolor="white")
    os.replace(unfinished, path)
    return path
