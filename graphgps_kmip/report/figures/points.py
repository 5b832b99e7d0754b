"""What a cell of a table is as a point of a figure, and labels of points that lie on nothing."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping

from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from graphgps_kmip.report.plot_style import FAINT
from graphgps_kmip.report.result_table import Cell

Label = tuple[float, float, str, str]  # x, y, text, colour
SIZE = re.compile(r"N=10\^([\d.]+)$")
# Where a label may stand, in points from its marker, the nearest places first: of a ring of eight, and of two wider.
PLACES = [
    (x * gap, y * gap * 0.9)
    for gap in (6, 11, 18, 27)
    for x, y in ((1, 0), (0.7, 0.9), (0.7, -0.9), (-1, 0), (-0.7, 0.9), (-0.7, -0.9), (0, 1.1), (0, -1.1))
]
FAR = 12  # points; a label further away gets a thin line to its marker


def ours(cell: Cell) -> float | None:
    """Return the mean of our values, None where there is none."""
    return statistics.mean(cell.ours.values) if cell.ours is not None and cell.ours.values else None


def spread(cell: Cell) -> float:
    """Return the sample standard deviation of our values; 0 for fewer than two."""
    return statistics.stdev(cell.ours.values) if cell.ours is not None and len(cell.ours.values) > 1 else 0.0


def paper(cell: Cell) -> float | None:
    """Return the printed mean, None where no number is printed."""
    return None if cell.printed is None else cell.printed.mean


def out_of_memory(text: str) -> bool:
    """Whether what stands in place of a number, ours or printed, says that memory ran out."""
    return "OOM" in text.upper()


def size_of(row: str) -> float | None:
    """Return the number of nodes that a row such as ``N=10^4.5`` is named after; None for another row."""
    found = SIZE.match(row)
    return 10 ** float(found[1]) if found else None


def place_labels(figure: Figure, labels: Mapping[Axes, Iterable[Label]], fontsize: float = 8) -> None:
    """Write labels beside their points, where they cover the least: points, each other, lines.

    It is the last that is drawn: the layout of the figure is settled here, for the places depend on it.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    renderer = FigureCanvasAgg(figure).get_renderer()
    for axes, wanted in labels.items():
        taken = _marks(axes, 4 * figure.dpi / 72)
        for x, y, text, color in wanted:
            label = axes.annotate(text, (x, y), (0, 0), textcoords="offset points", fontsize=fontsize, color=color)
            best = min(PLACES, key=lambda place: _cost(label, place, axes, taken, renderer))  # noqa: B023, used at once
            _move(label, best)
            if max(map(abs, best)) > FAR:
                line = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
                axes.annotate("", (x, y), best, textcoords="offset points", arrowprops=line)
            # text is a little wider at another resolution
            taken.append(label.get_window_extent(renderer).padded(2))


def _cost(
    label: Annotation, place: tuple[float, float], axes: Axes, taken: list[Bbox], renderer: RendererBase
) -> float:
    """Return how bad a place is: what it covers, lines least, and then how far it is."""
    _move(label, place)
    box, frame = label.get_window_extent(renderer), axes.get_window_extent()
    frame = frame.padded(-2)
    inside = frame.x0 < box.x0 and box.x1 < frame.x1 and frame.y0 < box.y0 and box.y1 < frame.y1
    covered = sum(box.overlaps(other) for other in taken)
    crossed = sum(
        line.get_transform().transform_path(line.get_path()).intersects_bbox(box, filled=False)
        for line in axes.lines
        if line.get_linestyle() != "None"
    )
    return 10 * covered + 20 * (not inside) + 4 * crossed + 0.3 * PLACES.index(place)


def _move(label: Annotation, place: tuple[float, float]) -> None:
    x, y = place
    label.set_position(place)
    label.set_ha("left" if x > 0 else "right" if x < 0 else "center")
    label.set_va("center" if y == 0 else "bottom" if y > 0 else "top")


def _marks(axes: Axes, half: float) -> list[Bbox]:
    """Return the boxes of all markers, in pixels."""
    drawn = [line.get_xydata() for line in axes.lines if line.get_marker() != "None"]
    points = [axes.transData.transform(point) for data in drawn for point in data]
    return [Bbox.from_extents(x - half, y - half, x + half, y + half) for x, y in points]
