"""Drawing the figures of an experiment: names of the drawing functions, checks, title, provenance, PNG and PDF.

A drawing function returns a matplotlib Figure without a title. It takes those of these arguments that it names:
``tables``, id -> table, in the figure's order; ``artefact``, the path of the figure's only file; ``options``, the
figure's own. Title, provenance and the mark of a sample are added here.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.common.project import reproduce_command
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.experiments.experiment_spec import Experiment, FigureSpec
from graphgps_kmip.experiments.run_status import State, command_status
from graphgps_kmip.report.learning_curves import FAINT, INK, save
from graphgps_kmip.report.provenance import hardware_in_words, origins
from graphgps_kmip.report.result_table import ResultTable
from graphgps_kmip.results.run_record import read_record

# name -> "module:function"; a module is imported when its figure is drawn
DRAWERS = {
    "ablation": "ablation_charts:draw_ablation",
    "approximation": "approximation_curves:draw_approximation",
    "attention_kinds": "magnitude_figures:draw_attention_kinds",
    "attention_graphs": "attention_graphs:attention_figure",
    "ball_tree_nodes": "ball_tree_growth:draw_nodes",
    "ball_tree_time": "ball_tree_growth:draw_time",
    "batch_sizes": "ablation_charts:draw_batch_sizes",
    "breakdown": "runtimes:draw_breakdown",
    "colourings_iteration": "expressivity_figures:draw_iteration",
    "colourings_pair": "expressivity_figures:draw_pair",
    "cumulative": "approximation_curves:draw_cumulative",
    "encoded_differences": "magnitude_figures:draw_encoded_differences",
    "energy_distances": "low_width_figures:draw_energy_distances",
    "hardmax": "expressivity_figures:draw_hardmax",
    "norm_autoencoders": "magnitude_figures:draw_norm_autoencoders",
    "out_degrees": "attention_graphs:draw_out_degrees",
    "pareto": "score_over_time:draw_pareto",
    "peak_memory": "low_width_figures:draw_peak_memory",
    "runtimes": "runtimes:draw_runtimes",
    "scaling": "scaling:draw_scaling",
    "score_against_cost": "score_against_cost:draw_score_against_cost",
    "time_against_score": "score_over_time:draw_time_against_score",
    "toy_fit": "expressivity_figures:draw_toy_fit",
}
CHARACTERS = 13.5  # of a title in an inch


def draw_figure(
    experiment: Experiment, spec: FigureSpec, tables: Mapping[str, ResultTable], out: Path, sample: bool = False
) -> list[Path]:
    """Draw a figure of an experiment to ``<out>/figures[-sample]/<experiment>-<name>.png`` and ``.pdf``; marks samples.

    Returns the two paths.

    Raises:
        ValueError: no such drawing function, a table without a number of ours, an artefact of a command that is not
            finished as the manifest has it, or one that lacks what is drawn.
    """
    where = f"{experiment.id}, figure {spec.name}"
    if spec.draw not in DRAWERS:
        raise ResultsError(f"{where}: no drawing function {spec.draw!r}.{suggest(spec.draw, DRAWERS)}")
    again = f"{reproduce_command()} run {experiment.id}{' --sample' if sample else ''}"
    artefacts = {source: _artefact(experiment, source, out, sample, where, again) for source in spec.sources}
    used = {key: _table(tables, key, where) for key in spec.tables}
    if used and not any(cell.our_mean is not None for table in used.values() for cell in _cells(table)):
        raise ResultsError(f"{where}: no number of ours in {', '.join(used)}: run it first ({again})")
    module, function = DRAWERS[spec.draw].split(":")
    draw = getattr(importlib.import_module(f"graphgps_kmip.report.figures.{module}"), function)
    given = {"tables": used, "artefact": next(iter(artefacts.values()), None), "options": spec.options}
    try:
        figure = draw(**{name: given[name] for name in inspect.signature(draw).parameters})
    except KeyError as error:
        raise ResultsError(f"{where}: what it draws holds no {error}: make it again ({again})") from error
    below = _provenance(used.values(), artefacts.values())
    _write_around(figure, spec.title or experiment.title, below, sample)
    folder = out / f"figures{'-sample' if sample else ''}"
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{experiment.id.replace('/', '-')}-{spec.name}"
    return [save(figure, folder / f"{stem}.{kind}", tight=True) for kind in ("png", "pdf")]


def _artefact(experiment: Experiment, source: str, out: Path, sample: bool, where: str, again: str) -> Path:
    name, _, file = source.partition("/")
    if name not in experiment.commands or not file:
        raise ResultsError(f"{where}: {source!r} is no <command>/<file>.{suggest(name, experiment.commands)}")
    status = command_status(experiment.commands[name], experiment, out, sample)
    if status.state is not State.DONE:
        raise ResultsError(f"{where}: command {name} is {status.state} in {status.path}: run it first ({again})")
    if bool(status.record.get("sample")) != sample:
        raise ResultsError(f"{where}: {status.path} holds {'a result' if sample else 'a sample'}: move it away")
    if not (status.path / file).exists():
        raise ResultsError(f"{where}: {status.path / file} does not exist: the command does not make it")
    return status.path / file


def _table(tables: Mapping[str, ResultTable], key: str, where: str) -> ResultTable:
    if key not in tables:
        raise ResultsError(f"{where}: no table {key!r}.{suggest(key, tables)}")
    return tables[key]


def _cells(table: ResultTable) -> Iterator[Any]:
    return (cell for cells in table.rows.values() for cell in cells.values())


def _write_around(figure: Figure, title: str, below: str, sample: bool) -> None:
    """Write title and provenance beyond the edges, so that nothing inside moves; the page grows when it is saved."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for legend in figure.legends:  # else it would move to the edge of the larger page
        legend.set_bbox_to_anchor((0, 0, 1, 1), figure.transFigure)
    width, height = figure.get_size_inches()
    title = f"SAMPLE, no result: {title}" if sample else title
    lines = "\n".join(textwrap.wrap(title, int(CHARACTERS * width)))
    figure.text(0.01, 1 + 0.06 / height, lines, va="bottom", color=INK, fontsize=10.5, fontweight="bold")
    below = "\n".join(
        line for part in below.splitlines() for line in textwrap.wrap(part, int(1.35 * CHARACTERS * width))
    )
    figure.text(0.01, -0.04 / height, below, va="top", color=FAINT, fontsize=7.5)
    if sample:
        size = 14 * min(width, 2 * height)
        figure.text(0.5, 0.5, "SAMPLE", ha="center", va="center", rotation=20, color=FAINT, alpha=0.3, fontsize=size)


def _provenance(tables: Iterable[ResultTable], artefacts: Iterable[Path]) -> str:
    """Return on what the numbers were measured, ours and the paper's, and which of ours are missing."""
    tables = list(tables)
    partial = dict.fromkeys(name for table in tables for name in _partial(table))
    published = dict.fromkeys(
        row
        for table in tables
        for row, cells in table.rows.items()
        if any(cell.ours and cell.ours.published for cell in cells.values())
    )
    found = {(one.hardware, one.date[:10], one.code_version) for table in tables for one in origins(table)}
    for record in filter(None, (read_record(path.parent) for path in artefacts)):
        parts = str(record.get("finished_at", "?"))[:10], str(record.get("code_version", "?"))
        found.add((hardware_in_words(record.get("hardware", {})), *parts))
    return "\n".join(
        [
            *_measured_on(found),
            *dict.fromkeys(f"paper: {one.printed_hardware}" for one in tables if one.printed_hardware),
            *([f"ours, of fewer runs than planned: {', '.join(partial)}"] if partial else []),
            *([f"published runs, not made here: {', '.join(published)}"] if published else []),
            *_not_run(tables),
        ]
    )


def _measured_on(found: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield a line for each machine, with dates and versions of the code, of (machine, date, version)."""
    by_machine: dict[str, list[str]] = {}
    for machine, date, code in sorted(found):
        by_machine.setdefault(machine, []).append(f"{date}, {code}")
    yield from (f"ours: {machine}, {'; '.join(runs)}" for machine, runs in by_machine.items())


def _not_run(tables: Sequence[ResultTable]) -> Iterator[str]:
    """Yield a line for each table of which rows have no run, and so no point: a picture is passed on without it."""
    for table in tables:
        rows = [
            row
            for row, cells in table.rows.items()
            if any(cell.ours and cell.ours.unfinished and not cell.ours.n for cell in cells.values())
        ]
        if rows:
            names = "" if len(rows) == len(table.rows) else f" of {', '.join(rows)}"
            yield f"{f'{table.title}: ' if len(tables) > 1 else ''}no runs{names}"


def _partial(table: ResultTable) -> Iterator[str]:
    """Yield ``GCN on Paris (3 of 4)`` for each cell drawn though runs are missing, ``all (1 of 4)`` if alike."""
    drawn = [cell.ours for cell in _cells(table) if cell.our_mean is not None]
    reached = {(one.n, one.wanted) for one in drawn}
    if len(drawn) > 1 and len(reached) == 1 and not drawn[0].complete:
        yield f"all ({drawn[0].n} of {drawn[0].wanted})"
        return
    for row, cells in table.rows.items():
        for column, cell in cells.items():
            if cell.our_mean is not None and not cell.ours.complete:
                yield f"{row} on {column} ({cell.ours.n} of {cell.ours.wanted})"
