"""Record of a hyper-parameter search: Optuna's study, with what was tried, what that cost, and what it chose."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from graphgps_kmip.errors import InputError
from graphgps_kmip.experiments.experiment_spec import Training

EQUAL = "tpe"  # the engine that gives every training as many trials as --trials sets
STUDY, RECORD = "search", "record"  # name of the study in its file, and of the attribute that says what it chose


@dataclass(frozen=True)
class SearchRecord:
    """What a search tried, what that cost, and what it chose."""

    config: str  # folder of the training that was searched, without its choice
    trials: int  # configurations that were asked for, repeated and failed ones counted
    failed: int  # configurations without a validation score
    seconds: float  # of all trials together, failed ones included
    seed: int  # of the trials
    config_hash: str  # of the chosen trial: a choice among trials of other settings than today's does not count
    metric: str  # that chose
    value: float  # its value on validation, of the chosen trial
    choice: Mapping[str, str]  # factor -> name of its value
    ranges: Mapping[str, Any]  # factor -> default and names of all values
    fixed: Mapping[str, Any]  # settings of every trial
    settings: Mapping[str, Any]  # those of the choice, dotted key -> value
    # Each configuration once: tag, state, error, value, seconds, parameters. Empty where the choice was published.
    tried: Sequence[Mapping[str, Any]] = ()

    @property
    def published(self) -> bool:
        """Return whether the choice is a published one, instead of that of a search below the root of the results."""
        return not self.tried


def study_file(experiment: str, training: Training, out: Path, sample: bool, engine: str = EQUAL) -> Path:
    """Return the storage of a training's search; its trial log is beside it."""
    folder = out / f"search{'-sample' if sample else ''}" / experiment.replace("/", "-")
    return folder / f"{Path(training.folder).name}-{engine}.optuna.jsonl"


class StorageLock:
    """Lock of a storage for Optuna, whose own one outlives a process that is killed; it may be taken repeatedly.

    What a killed process left of an unfinished line is cut off, for the next line must not join it.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lock = FileLock(f"{file}.flock", is_singleton=True)  # not .lock: Optuna's is a link to the storage

    def acquire(self) -> bool:
        """Take the lock, as Optuna asks for it."""
        self.lock.acquire()
        content = self.file.read_bytes()
        if not content.endswith(b"\n"):
            os.truncate(self.file, content.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Give the lock back."""
        self.lock.release()


def open_study(file: Path) -> Any:
    """Return Optuna's study in a file, a new one if there is none: whoever makes one holds the lock.

    A journal file: opening Optuna's SQLite storage from two processes at once fails while the tables are made.

    Raises:
        InputError: Optuna is not installed.
    """
    optuna = import_optuna()
    backend = optuna.storages.journal.JournalFileBackend(str(file), StorageLock(file))
    storage = optuna.storages.JournalStorage(backend)
    if STUDY in optuna.get_all_study_names(storage):
        return optuna.load_study(study_name=STUDY, storage=storage)
    return optuna.create_study(study_name=STUDY, storage=storage, direction="maximize")


def read_search(file: Path) -> SearchRecord | None:
    """Return the record of the search in a study's file, None if there is none or it has not ended."""
    record = open_study(file).user_attrs.get(RECORD) if file.exists() else None
    return record and SearchRecord(**record)


def import_optuna() -> Any:
    """Return the package.

    Raises:
        InputError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise InputError("--search: optuna is not installed: pip install optuna, or 'graphgps_kmip[search]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # the trial log says how each trial ended
    return optuna
