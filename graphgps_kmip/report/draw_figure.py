"""Drawing the figures of an experiment: names of the drawing functions, checks, title, provenance, PNG and PDF.

A drawing function returns a Figure without a title, and takes those of these arguments that it names: ``tables``, id ->
table, in the figure's order; ``artefact``, the path of the figure's only file; ``options``, the figure's own.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from graphgps_kmip.common.environment import reproduce_command
from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.experiments.experiment_spec import Experiment, FigureSpec
from graphgps_kmip.experiments.run_status import State, command_status
from graphgps_kmip.report.learning_curves import FAINT, INK, save
from graphgps_kmip.report.result_table import ResultTable
from graphgps_kmip.report.table_notes import describe_hardware, origins
from graphgps_kmip.results.run_record import read_record

# module of `report.figures`, imported when a figure is drawn -> names of its functions draw_<name>
MODULES = {
    "approximation_curves": ("approximation", "cumulative", "energy_distances"),
    "attention_graphs": ("attention_graphs", "out_degrees"),
    "ball_tree_growth": ("ball_tree_nodes", "ball_tree_time"),
    "expressivity_figures": (
        *("attention_kinds", "colourings_iteration", "colourings_pair", "encoded_differences", "hardmax"),
        *("norm_autoencoders", "toy_fit"),
    ),
    "runtimes": ("breakdown", "runtimes", "scaling", "score_over_size"),
    "score_charts": ("ablation", "batch_sizes", "pareto", "peak_memory", "score_against_cost", "time_against_score"),
}
DRAWERS = {name: module for module, names in MODULES.items() for name in names}
CHARACTERS = 13.5  # of a title in an inch


def draw_figure(
    experiment: Experiment, spec: FigureSpec, tables: Mapping[str, ResultTable], out: Path, sample: bool = False
) -> list[Path]:
    """Draw a figure to ``<out>/figures[-sample]/<experiment>-<name>.png`` and ``.pdf``, and return the two paths.

    Raises:
        ResultsError: no such drawing function, or what it draws is missing or unfinished.
    """
    where = f"{experiment.id}, figure {spec.name}"
    if spec.draw not in DRAWERS:
        raise ResultsError(f"{where}: no drawing function {spec.draw!r}.{suggest(spec.draw, DRAWERS)}")
    again = f"{reproduce_command()} run {experiment.id}{' --sample' if sample else ''}"
    artefacts = [_artefact(experiment, source, out, sample, where, again) for source in spec.sources]
    if lost := [key for key in spec.tables if key not in tables]:
        raise ResultsError(f"{where}: no table {lost[0]!r}.{suggest(lost[0], tables)}")
    used = {key: tables[key] for key in spec.tables}
    if used and not any(cell.our_mean is not None for table in used.values() for *_, cell in table.places()):
        raise ResultsError(f"{where}: no number of ours in {', '.join(used)}: run it first ({again})")
    module = importlib.import_module(f"graphgps_kmip.report.figures.{DRAWERS[spec.draw]}")
    draw = getattr(module, f"draw_{spec.draw}")
    arguments = {"tables": used, "artefact": next(iter(artefacts), None), "options": spec.options}
    try:
        figure = draw(**{name: arguments[name] for name in inspect.signature(draw).parameters})
    except KeyError as error:
        raise ResultsError(f"{where}: what it draws holds no {error}: make it again ({again})") from error
    below = "\n".join(_provenance(list(used.values()), artefacts))
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
    return status.path / file


def _write_around(figure: Figure, title: str, below: str, sample: bool) -> None:
    """Write title and provenance beyond the edges, so that nothing inside moves; the page grows when it is saved."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for legend in figure.legends:  # else it would move to the edge of the larger page
        legend.set_bbox_to_anchor((0, 0, 1, 1), figure.transFigure)
    width, height = figure.get_size_inches()
    title = textwrap.fill(f"SAMPLE, no result: {title}" if sample else title, int(CHARACTERS * width))
    figure.text(0.01, 1 + 0.06 / height, title, va="bottom", color=INK, fontsize=10.5, fontweight="bold")
    below = "\n".join(textwrap.fill(line, int(1.35 * CHARACTERS * width)) for line in below.splitlines())
    figure.text(0.01, -0.04 / height, below, va="top", color=FAINT, fontsize=7.5)
    if sample:
        size = 14 * min(width, 2 * height)
        figure.text(0.5, 0.5, "SAMPLE", ha="center", va="center", rotation=20, color=FAINT, alpha=0.3, fontsize=size)


def _provenance(tables: Sequence[ResultTable], artefacts: Sequence[Path]) -> Iterator[str]:
    """Yield on what the numbers were measured, ours and the paper's, and which of ours are missing."""
    sources = [origin for table in tables for origin in origins(table)]
    measured = {(origin.hardware, origin.date[:10], origin.code_version) for origin in sources}
    for record in filter(None, (read_record(path.parent) for path in artefacts)):
        parts = str(record.get("finished_at", "?"))[:10], str(record.get("code_version", "?"))
        measured.add((describe_hardware(record.get("hardware", {})), *parts))
    machines: dict[str, list[str]] = {}
    for machine, date, code in sorted(measured):
        machines.setdefault(machine, []).append(f"{date}, {code}")
    yield from (f"ours: {machine}, {'; '.join(runs)}" for machine, runs in machines.items())
    yield from dict.fromkeys(f"paper: {table.printed_hardware}" for table in tables if table.printed_hardware)
    if partial := dict.fromkeys(text for table in tables for text in _partial(table)):
        yield f"ours, of fewer runs than planned: {', '.join(partial)}"
    sides = [(row, cell.ours) for table in tables for row, _, cell in table.places() if cell.ours]
    if published := dict.fromkeys(row for row, side in sides if side.published):
        yield f"published runs, not made here: {', '.join(published)}"
    for table in tables:  # rows and columns without a run have no point: a picture is passed on without its table
        title = f"{table.title}: " if len(tables) > 1 else ""
        sides = [(row, column, cell.ours) for row, column, cell in table.places() if cell.ours]
        drawn = {name for *names, side in sides if side.n for name in names}
        missing = {name: None for *names, side in sides if side.unfinished for name in names if name not in drawn}
        if missing:
            yield title + (f"no runs of {', '.join(missing)}" if drawn else "no runs")


def _partial(table: ResultTable) -> list[str]:
    """Return ``GCN on Paris (3 of 4)`` for each cell drawn though runs are missing, ``all (1 of 4)`` if alike."""
    drawn = [(row, column, cell.ours) for row, column, cell in table.places() if cell.our_mean is not None]
    counts = {(side.n, side.planned) for *_, side in drawn}
    if len(drawn) > 1 and len(counts) == 1 and not drawn[0][2].complete:
        return [f"all ({drawn[0][2].n} of {drawn[0][2].planned})"]
    return [f"{row} on {column} ({side.n} of {side.planned})" for row, column, side in drawn if not side.complete]
