"""record.json: read, check and write the record of a run or command."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.common.json_files import Damaged, is_amount, is_count, is_number, parsed_object, read_bytes
from graphgps_kmip.results.run_folder import RECORD, SPLITS, writing

log = logging.getLogger(__name__)


def _is_moment(value: Any) -> bool:
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


def _is_best(value: Any) -> bool:
    """An empty mapping (no epoch yet), or epoch, selecting value and the statistics of some splits."""
    if not isinstance(value, dict):
        return False
    chosen = value.get("value")
    splits = [value[split] for split in SPLITS if split in value]
    return (
        is_count(value.get("epoch", 0))
        and (chosen is None or is_number(chosen))
        and all(isinstance(one, dict) and is_number(one.get("loss", 0.0)) for one in splits)
    )


# key -> whether its value is one, and what is expected. Other keys, of later versions, are not checked.
CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("finished", "sample"), (lambda value: isinstance(value, bool), "true or false")),
    **dict.fromkeys(
        ("config_hash", "experiment", "name", "precision", "metric_best", "code_version", "config_file", "scores"),
        (lambda value: isinstance(value, str), "a text"),
    ),
    **dict.fromkeys(("resumes", "seed", "max_epoch", "epochs", "params", "processes"), (is_count, "a whole number")),
    **dict.fromkeys(("wall_time", "seconds", "seconds_per_epoch"), (is_amount, "a number of seconds")),
    **dict.fromkeys(("hardware", "packages"), (lambda value: isinstance(value, dict), "an object")),
    "finished_at": (_is_moment, "a date"),
    "best": (_is_best, "epoch, value and the statistics of splits"),
}


def examine_record(run_dir: Path) -> tuple[dict[str, Any] | None, str]:
    """Return the record of a run and what is wrong with it.

    Args:
        run_dir: folder of the run, or of a command.

    Returns:
        ``(record, "")``; ``(None, "")`` if there is none; ``(None, what is wrong)`` if the file is damaged.

    Raises:
        RunFolderError: it cannot be read.
    """
    try:
        text = read_bytes(run_dir / RECORD)
        if text is None:
            return None, ""
        record = parsed_object(text)
        for key, value in record.items():
            check, expected = CHECKS.get(key, (None, ""))
            if check and not check(value):
                raise Damaged(f"{key} is {_shown(value)}, expected {expected}")
    except Damaged as damage:
        return None, str(damage)
    return record, ""


def read_record(run_dir: Path) -> dict[str, Any] | None:
    """Return the record of a run, None if there is none; a damaged one counts as none, and the log says so.

    A run without a record is never a result: tables leave it out, and a training moves its folder aside.

    Raises:
        RunFolderError: it cannot be read.
    """
    record, damage = examine_record(run_dir)
    if damage:
        log.warning("%s", damage_line(run_dir, damage))
    return record


def damage_line(run_dir: Path, damage: str) -> str:
    """Return the log line about a damaged record."""
    return (
        f"{run_dir / RECORD} is damaged ({damage}): this run does not count as finished; restore the file, or train "
        "again, which moves the folder aside"
    )


def is_finished(record: dict[str, Any] | None) -> bool:
    """Return whether a record is that of a finished run or command."""
    return record is not None and record.get("finished") is True


def trained_epochs(record: dict[str, Any]) -> int:
    """Return how many epochs a finished run has; 0 where its record does not say it."""
    return record.get("epochs", record.get("max_epoch", 0))  # runs of before have all that were asked for


def write_record(run_dir: Path, record: dict[str, Any]) -> None:
    """Replace the record of a run.

    Raises:
        RunFolderError: it cannot be written; the earlier one is as it was.
    """
    with writing(run_dir / RECORD):
        replace_file(run_dir / RECORD, (json.dumps(record, indent=2) + "\n").encode())


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."
