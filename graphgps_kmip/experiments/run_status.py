"""Run status: whether a run or command is done, missing, interrupted, failed, diverged or stale, read from disk.

Published runs, which were made elsewhere, are rows of a CSV file for each experiment in ``run/experiments/published/``,
written by ``report.publishing``. Also the list of all experiments.
"""

from __future__ import annotations

import csv
import dataclasses
import enum
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from graphgps_kmip.common.atomic_write import Damaged, parsed_object, read_bytes
from graphgps_kmip.errors import DIVERGED_CODE
from graphgps_kmip.experiments.experiment_spec import Command, Experiment, Training
from graphgps_kmip.results.run_record import examine_record, is_finished

# Arguments of main.py -> the config hash that its record will have. Reading a config needs GraphGym, which only gym/
# knows: the callers pass this function in.
ComputeHash = Callable[[list[str]], str]

TIMED = "timing"  # folder below the root of the results: the runs of `run --timing`
HEAD = ("id", "done", "sample", "hours", "memory", "card", "what it is, and what it makes")
LEGEND = (
    "done, sample: finished runs and commands, on real and on sample data; hours: of all that are needed, one at a "
    "time; as ID: the same runs as that experiment"
)
NARROWEST = 30  # columns that the last column has in any case
NUMBERS = ("validation", "score", "epochs", "seconds", "epoch_seconds", "memory_mb", "params", "width")
COLUMNS = (
    *("folder", "kind", "choice", "config_hash", "seed", "split", "metric", "better"),  # better: higher or lower
    *(*NUMBERS, "machine", "cores", "code_version", "date"),
)
RUN, TRIAL, TIMING = "run", "trial", "timing"  # of rows; timing: a run that had the machine to itself


class State(enum.StrEnum):
    """State of a run or command."""

    DONE = "done"
    MISSING = "missing"
    INTERRUPTED = "interrupted"  # begun, neither finished nor failed: resumes
    FAILED = "failed"
    DIVERGED = "diverged"  # failed: its loss was NaN or infinite
    STALE = "stale"  # finished with other settings than those of today


@dataclass(frozen=True)
class Status:
    """Status of one run or command."""

    state: State
    path: Path  # its folder
    record: dict[str, Any]  # content of its record.json, empty if there is none
    error: str = ""  # why it failed, or what is damaged, one line


def run_status(training: Training, seed: int, out: Path, compute_hash: ComputeHash, sample: bool = False) -> Status:
    """Return the status of one seed's run."""
    path = training.run_dir(seed, out, sample)
    return _read_status(path, lambda: compute_hash(training.arguments(seed, out, sample)))


def command_status(command: Command, experiment: Experiment, out: Path, sample: bool = False) -> Status:
    """Return the status of a command: its record holds the text that it was called with."""
    path = command.out_dir(experiment.id, out, sample)
    status = _read_status(path, lambda: command.sample if sample else command.run)
    complete = all((path / name).exists() for name in command.produces)
    return status if complete or status.state is not State.DONE else Status(State.MISSING, path, {})


def failure_file(path: Path) -> Path:
    """Return where the failure of a run or command is written: JSON, error, exit_code, config_hash and more."""
    return path.with_name(f"{path.name}.failed.json")


def read_failure(path: Path) -> dict[str, Any]:
    """Return what was written when a run or command failed, empty if nothing was or if it is damaged."""
    try:
        return parsed_object(read_bytes(failure_file(path)) or b"{}")
    except Damaged:
        return {}


def _read_status(path: Path, hash_now: Callable[[], str]) -> Status:
    content, damage = examine_record(path)
    record, failure = content or {}, read_failure(path)
    error = f"its record.json is damaged ({damage})" if damage else ""
    if not record and not failure:
        return Status(State.MISSING, path, {}, error)  # most runs are, and reading a config takes a while
    config_hash = hash_now()
    same = record.get("config_hash") == config_hash
    if is_finished(record):
        return Status(State.DONE if same else State.STALE, path, record)
    if failure.get("config_hash") == config_hash:
        state = State.DIVERGED if failure.get("exit_code") == DIVERGED_CODE else State.FAILED
        return Status(state, path, record, str(failure.get("error", "")))
    return Status(State.INTERRUPTED if record and same else State.MISSING, path, record, error)


class Key(NamedTuple):
    """What a published run is found by, next to its config hash."""

    folder: str  # of the training
    seed: int
    timed: bool = False


def row_key(row: Mapping[str, Any]) -> Key:
    """Return what the run of a row is found by."""
    return Key(row["folder"], int(row["seed"]), row["kind"] == TIMING)


def published_file(experiment: str, folder: Path) -> Path:
    """Return the file of an experiment in a folder of published runs."""
    return folder / f"{experiment.replace('/', '-')}.csv"


def with_published(experiment: Experiment, *folders: Path) -> Experiment:
    """Return an experiment with the runs that the files in some folders publish, of whatever settings."""
    published: dict[Key, Status] = {}
    for file in (published_file(experiment.id, folder) for folder in folders):
        if file.exists():
            with open(file, newline="", encoding="utf-8") as stream:
                for row in csv.DictReader(stream):
                    published[row_key(row)] = _read_published(row, file)
    return dataclasses.replace(experiment, published=published)


def run_or_published(
    published: Mapping[Key, Status],
    training: Training,
    seed: int,
    out: Path,
    compute_hash: ComputeHash,
    timed: bool = False,
    sample: bool = False,
) -> Status:
    """Return the status of one seed's run below `out`; where it is not finished, of a published one of its settings.

    Args:
        published (Mapping): Of an experiment, of whatever settings.
        training (Training): Whose run it is.
        seed (int): Of the run.
        out (Path): Root of the results.
        compute_hash (callable): Config hash of a command line.
        timed (bool, optional): Of ``run --timing``. (default: ``False``)
        sample (bool, optional): On sample data, of which nothing is published. (default: ``False``)
    """
    out = out / TIMED if timed else out
    here, elsewhere = run_status(training, seed, out, compute_hash, sample), None
    if here.state is not State.DONE and not sample:
        elsewhere = published.get(Key(training.folder, seed, timed))
    same = elsewhere and elsewhere.record["config_hash"] == compute_hash(training.arguments(seed, out))
    return elsewhere if same else here


def _read_published(row: Mapping[str, str], file: Path) -> Status:
    """Return the status whose record has what a row says, where the record of a run has it."""
    number: dict[str, Any] = {name: float(row[name]) if row[name] else None for name in NUMBERS}
    cores = int(float(row["cores"])) if row["cores"] else None  # a GPU has none
    record = {"published": True, "sample": False, "metric_best": row["metric"], "finished_at": row["date"]}
    record |= {name: row[name] for name in ("config_hash", "better", "code_version")}
    record |= {name: number[name] for name in ("epochs", "epoch_seconds", "params", "width")}
    record |= {"wall_time": number["seconds"], "hardware": {"cpu": row["machine"], "cores": cores}}
    record["hardware"] = record["hardware"] if cores else {"gpu": row["machine"]}
    record["peak_memory"] = {"ram": number["memory_mb"] and number["memory_mb"] * 2**20}
    test = {} if number["score"] is None else {row["metric"]: number["score"]}
    record["best"] = {"value": number["validation"], "test": test}
    failed = row["kind"] == TRIAL and not row["validation"]
    return Status(State.FAILED if failed else State.DONE, file, record, "where it was published" if failed else "")


@dataclass(frozen=True)
class Extent:
    """Numbers of runs and commands."""

    needed: int
    done: int  # finished, on real data
    failed: int  # failed or diverged, on real data
    sampled: int  # finished as samples


def statuses(experiment: Experiment, out: Path, compute_hash: ComputeHash, sample: bool = False) -> dict[Path, Status]:
    """Return folder -> status of every run and command."""
    runs = [run_status(row, seed, out, compute_hash, sample) for row in experiment.trainings for seed in row.seeds]
    commands = [command_status(command, experiment, out, sample) for command in experiment.commands.values()]
    return {status.path: status for status in [*runs, *commands]}


def extent(experiment: Experiment, out: Path, compute_hash: ComputeHash) -> Extent:
    """Count the runs of an experiment."""
    real, sample = (
        Counter(status.state for status in statuses(experiment, out, compute_hash, kind).values())
        for kind in (False, True)
    )
    failed = real[State.FAILED] + real[State.DIVERGED]
    return Extent(real.total(), real[State.DONE], failed, sample[State.DONE])


def experiment_table(experiments: Iterable[Experiment], read_extent: Callable[[Experiment], Extent], width: int) -> str:
    """Return a table with a row for each experiment: how much is done, what it costs, and what it is."""
    rows = [HEAD]
    for experiment, costs in _describe_costs(experiments):
        reached = read_extent(experiment)
        done = f"{reached.done}/{reached.needed}" + (f" ({reached.failed} failed)" if reached.failed else "")
        rows.append((experiment.id, done, f"{reached.sampled}", *costs))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD) - 1)]
    indent = sum(widths) + 2 * len(widths)
    lines = []
    for row in rows:
        cells = (f"{cell:<{size}}" for cell, size in zip(row[:-1], widths, strict=True))
        wrapped = textwrap.wrap(row[-1], max(NARROWEST, width - indent))
        lines += ["  ".join([*cells, wrapped[0]]), *(" " * indent + line for line in wrapped[1:])]
    return "\n".join([*lines, "", *textwrap.wrap(LEGEND, width)])


def experiment_markdown(experiments: Iterable[Experiment]) -> str:
    """Return the same as a table in Markdown, without what is done: it is the same on every machine."""
    rows = [("experiment", "what it is, and what it makes", "runs", "hours", "card", "memory"), ("---",) * 6]
    for experiment, (hours, memory, card, title) in _describe_costs(experiments):
        runs, commands = sum(len(row.seeds) for row in experiment.trainings), len(experiment.commands)
        counts = [f"{runs}"] * bool(runs) + [f"{commands} command{'s' * (commands > 1)}"] * bool(commands)
        rows.append((f"`{experiment.id}`", title, " and ".join(counts), hours, card, memory))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _describe_costs(experiments: Iterable[Experiment]) -> Iterator[tuple[Experiment, tuple[str, str, str, str]]]:
    """Yield the experiments by number with hours (or the earlier experiment that has its runs), memory, card, title."""
    earlier: dict[str, set[tuple[str, object]]] = {}
    for experiment in sorted(experiments, key=lambda experiment: (experiment.number, experiment.id)):
        runs = {(training.folder, seed) for training in experiment.trainings for seed in training.seeds}
        runs |= {(command.of or experiment.id, command.name) for command in experiment.commands.values()}
        same = next((key for key, others in earlier.items() if runs <= others), None)
        if not experiment.of:  # those that it is made of say what they cost
            earlier[experiment.id] = runs
        cost = experiment.cost
        hours = f"as {same}" if same else f"{cost['hours']:g}" if "hours" in cost else "?"
        memory = f"{cost['memory_gb']:g} GB" if "memory_gb" in cost else "?"
        title = " -> ".join(filter(None, [experiment.title, ", ".join(experiment.makes)]))
        yield experiment, (hours, memory, str(cost.get("card", "?")), title)
