"""Figure of learning curves: the score after each epoch of a table's trainings, beside what is printed of the end."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report.learning_curves import FAINT, INK, series_style, tidy
from graphgps_kmip.report.result_table import Cell, ResultTable
from graphgps_kmip.results.run_stats import read_stats

LOOKS = {"val": {"linestyle": "--", "linewidth": 1.1}, "test": {"linestyle": "-", "linewidth": 1.8}}
PANEL = (5.0, 3.4)  # inches


def draw_score_curves(tables: Mapping[str, ResultTable], options: Mapping[str, Any]) -> Figure:
    """Draw one panel for each column, two curves for each row: its metric over epochs, validation dashed and test.

    A curve is the mean over the finished runs, with a band from the lowest to the highest of several. A printed number
    is a dotted horizontal line: the end of a training of the paper, which may be longer, and on other data where the
    column says that ours are rebuilt.

    Args:
        tables: one, of scores.
        options: ``scale``: factor on the metric, 100 for percent (default: 1).

    Raises:
        ValueError: a run holds no such metric, or runs of one cell have not the same epochs.
    """
    (table,) = tables.values()
    drawn = [name for name in table.columns if any(cells[name].our_mean is not None for cells in table.rows.values())]
    figure = Figure(figsize=(PANEL[0] * len(drawn), PANEL[1]), layout="constrained")
    for column, axes in zip(drawn, figure.subplots(1, len(drawn), squeeze=False)[0], strict=True):
        handles = []
        for place, (row, cells) in enumerate(table.rows.items()):
            handles += _draw_row(axes, row, cells[column], series_style(place), options.get("scale", 1))
        tidy(axes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        facts = table.columns[column]
        unit = f", {facts['unit']}" if facts.get("unit") else ""
        axes.set_title(column, fontsize=9.5, color=INK)
        axes.set_xlabel("epochs", fontsize=9, color=INK)
        axes.set_ylabel(f"{facts.get('metric', 'score')}{unit}", fontsize=9, color=INK)
        kinds = [Line2D([], [], color=FAINT, label=split, **look) for split, look in LOOKS.items()]
        words = {"frameon": False, "fontsize": 7.5, "labelcolor": INK}
        axes.legend(handles=handles + kinds, loc="upper left", bbox_to_anchor=(1, 1), **words)
    return figure


def _draw_row(axes: Axes, row: str, cell: Cell, style: Mapping[str, str], scale: float) -> list[Line2D]:
    """Draw the curves of one cell and its printed number; return what the legend says of them."""
    handles = []
    if cell.our_mean is not None:
        for split, look in LOOKS.items():
            runs = [_scores(status, split, scale) for status in cell.ours.sources.values()]
            epochs = list(runs[0])
            if any(list(run) != epochs for run in runs):
                raise ResultsError(f"{row}: runs have not the same epochs in {split}/stats.json: finish them first")
            values = list(zip(*(run.values() for run in runs), strict=True))
            mean = [statistics.fmean(one) for one in values]
            axes.plot([epoch + 1 for epoch in epochs], mean, markersize=3.5, **style, **look)
            if len(runs) > 1:
                low, high = ([pick(one) for one in values] for pick in (min, max))
                axes.fill_between([one + 1 for one in epochs], low, high, color=style["color"], alpha=0.15, linewidth=0)
        seeds = f"{len(runs)} seeds" if len(runs) > 1 else "1 seed"
        handles.append(Line2D([], [], label=f"{row} ({len(epochs)} epochs, {seeds})", **style))
    if cell.paper_mean is not None:
        look = {"color": style["color"], "linestyle": ":", "linewidth": 1.4}
        axes.axhline(cell.paper_mean, **look)
        handles.append(Line2D([], [], label=f"{row}, printed {cell.printed.text}", **look))
    return handles


def _scores(status: Any, split: str, scale: float) -> dict[int, float]:
    """Return epoch -> score of one run."""
    metric = status.record["metric_best"]
    lines = read_stats(status.path, split)
    if not lines or any(metric not in line for line in lines.values()):
        raise ResultsError(f"{status.path}/{split}/stats.json has no {metric} in every epoch: train it again")
    return {epoch: scale * line[metric] for epoch, line in lines.items()}
