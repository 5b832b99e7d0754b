"""Run status: whether a run or command is done, missing, interrupted, failed, diverged or stale, read from disk."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphgps_kmip.common.json_files import Damaged, parsed_object, read_bytes
from graphgps_kmip.errors import DIVERGED_CODE
from graphgps_kmip.experiments.experiment_spec import Command, Experiment, Training
from graphgps_kmip.results.run_record import examine_record, is_finished

# Arguments of main.py -> the config hash that its record will have. Reading a config needs GraphGym, which only gym/
# knows: the callers pass this function in.
HashOf = Callable[[list[str]], str]


TIMED = "timing"  # folder below the root of the results: the runs of `run --timing`


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
    """Status of one run or command.

    Args:
        state (State): In a word.
        path (Path): Its folder.
        record (dict): Content of its record.json, empty if there is none.
        error (str, optional): Why it failed, or what is damaged, one line. (default: ``""``)
    """

    state: State
    path: Path
    record: dict[str, Any]
    error: str = ""


def run_status(training: Training, seed: int, out: Path, hash_of: HashOf, sample: bool = False) -> Status:
    """Return the status of one seed's run."""
    path = training.run_dir(seed, out, sample)
    return _status(path, lambda: hash_of(training.words(seed, out, sample)))


def command_status(command: Command, experiment: Experiment, out: Path, sample: bool = False) -> Status:
    """Return the status of a command: its record holds the words it was called with."""
    path = command.out_dir(experiment.id, out, sample)
    status = _status(path, lambda: command.sample if sample else command.run)
    lost = [name for name in command.produces if not (path / name).exists()]
    return Status(State.MISSING, path, {}) if status.state is State.DONE and lost else status


def failure_file(path: Path) -> Path:
    """Return where the failure of a run or command is written: JSON, error, exit_code, config_hash and more."""
    return path.with_name(f"{path.name}.failed.json")


def read_failure(path: Path) -> dict[str, Any]:
    """Return what was written when a run or command failed, empty if nothing was or if it is damaged."""
    try:
        return parsed_object(read_bytes(failure_file(path)) or b"{}")
    except Damaged:
        return {}


def _status(path: Path, hash_now: Callable[[], str]) -> Status:
    found, damage = examine_record(path)
    record, failure = found or {}, read_failure(path)
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


@dataclass(frozen=True)
class Extent:
    """Numbers of runs and commands.

    Args:
        needed (int): All of them.
        done (int): Finished, on real data.
        failed (int): Failed or diverged, on real data.
        sampled (int): Finished as samples.
    """

    needed: int
    done: int
    failed: int
    sampled: int


def statuses(experiment: Experiment, out: Path, hash_of: HashOf, sample: bool = False) -> dict[Path, Status]:
    """Return folder -> status of every run and command."""
    found = [run_status(one, seed, out, hash_of, sample) for one in experiment.trainings for seed in one.seeds]
    found += [command_status(one, experiment, out, sample) for one in experiment.commands.values()]
    return {status.path: status for status in found}


def extent(experiment: Experiment, out: Path, hash_of: HashOf) -> Extent:
    """Count the runs of an experiment."""
    real, sample = (
        Counter(status.state for status in statuses(experiment, out, hash_of, kind).values()) for kind in (False, True)
    )
    failed = real[State.FAILED] + real[State.DIVERGED]
    return Extent(real.total(), real[State.DONE], failed, sample[State.DONE])
