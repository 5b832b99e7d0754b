"""The results of a run on disk: one JSON line per epoch and split, and one record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from graphgps_kmip.files import replace_file

SPLITS = ("train", "val", "test")


def rounded(stats: dict[str, Any], digits: int) -> dict[str, Any]:
    """Return the statistics with floats cut to so many significant digits (a rate of 1e-9 stays 1e-9)."""
    return {key: float(f"{value:.{digits}g}") if isinstance(value, float) else value for key, value in stats.items()}


def stats_file(run_dir: Path, split: str) -> Path:
    """Return where the lines of a split stand, as in GraphGym."""
    return run_dir / split / "stats.json"


def append_stats(run_dir: Path, split: str, stats: dict[str, Any]) -> None:
    """Append one line of JSON to the split's stats.json, flushed before the return."""
    path = stats_file(run_dir, split)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(stats) + "\n")


def trim_stats(run_dir: Path, epoch: int) -> None:
    """Drop the lines after `epoch`, and the part of a line that a killed run left at the end."""
    for split in SPLITS:
        path = stats_file(run_dir, split)
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if _epoch_of(line) <= epoch]
            replace_file(path, "".join(line + "\n" for line in kept).encode())


def _epoch_of(line: str) -> float:
    try:
        return json.loads(line)["epoch"]
    except json.JSONDecodeError:
        return float("inf")


def read_record(run_dir: Path) -> dict[str, Any] | None:
    """Return the content of record.json, or None if there is none that can be read."""
    try:
        record = json.loads((run_dir / "record.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    return record if isinstance(record, dict) else None


def write_record(run_dir: Path, record: dict[str, Any]) -> None:
    """Replace record.json."""
    replace_file(run_dir / "record.json", (json.dumps(record, indent=2) + "\n").encode())
