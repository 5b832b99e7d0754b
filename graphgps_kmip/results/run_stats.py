"""stats.json: one JSON line per epoch and split; reading, appending and trimming."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.common.json_files import Damaged, is_count, is_number, parsed_object, read_bytes
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.results.run_folder import SPLITS, stats_file, writing

Line = dict[str, Any]
# Keys of a line that are neither the loss nor a metric.
BOOKKEEPING = ("epoch", "time_epoch", "time_iter", "eta", "eta_hours", "lr", "params")
# Keys that the file of the train split has beside what was measured.
ETA = ("eta", "eta_hours")
MAX_NAMED = 3  # epochs that a message names


def rounded(stats: dict[str, Any], digits: int) -> dict[str, Any]:
    """Return the statistics with floats cut to so many significant digits (a rate of 1e-9 stays 1e-9)."""
    return {key: float(f"{value:.{digits}g}") if isinstance(value, float) else value for key, value in stats.items()}


def read_stats(run_dir: Path | str, split: str) -> dict[int, Line]:
    """Return the lines of `<run_dir>/<split>/stats.json` by epoch, in increasing order; empty if there are none.

    What follows the last end of line (of a killed run) is left out unless it is a whole line; of two lines for one
    epoch (of a resumed run) the later holds.

    Raises:
        ResultsError: the file is damaged; names file and line.
        RunFolderError: it cannot be read.
    """
    by_epoch = {line["epoch"]: line for line, _ in _lines(Path(run_dir), split)}
    return dict(sorted(by_epoch.items()))


def read_run(run_dir: Path | str) -> dict[str, dict[int, Line]]:
    """Return the lines of every split that has some: split -> epoch -> line."""
    return {split: lines for split in SPLITS if (lines := read_stats(run_dir, split))}


def _lines(run_dir: Path, split: str) -> list[tuple[Line, bytes]]:
    """Return each line of a split's file, read and as it is on disk, in the order of the file."""
    path = stats_file(run_dir, split)
    number = 1
    lines: list[tuple[Line, bytes]] = []
    try:
        *whole, rest = (read_bytes(path) or b"").split(b"\n")
        for number, text in enumerate([*whole, *([rest] if rest else [])], start=1):
            try:
                line = _line(text)
                _check_kinds(line, lines[0][0] if lines else line)
            except Damaged:
                if number > len(whole):  # cut off by a kill
                    break
                raise
            lines.append((line, text))
    except Damaged as damage:
        raise ResultsError(
            f"{path}, line {number} is not a JSON line with an epoch ({damage}); restore the file, or move {run_dir} "
            "away and train again."
        ) from damage
    return lines


def _line(text: bytes) -> Line:
    line = parsed_object(text)
    if not is_count(line.get("epoch")):
        raise Damaged(f"epoch is {json.dumps(line.get('epoch'))[:40]}, expected a whole number")
    if not is_number(line.get("loss", 0.0)):
        raise Damaged(f"loss is {json.dumps(line['loss'])[:40]}, expected a number")
    return line


def _check_kinds(line: Line, first: Line) -> None:
    for key, value in line.items():
        if key in first and is_number(value) != is_number(first[key]):
            raise Damaged(f"{key} is {json.dumps(value)[:40]}, and {json.dumps(first[key])[:40]} in the first line")


def append_stats(run_dir: Path, split: str, stats: Line) -> None:
    """Append one line of JSON to the split's file, flushed before the return.

    Raises:
        RunFolderError: it cannot be written; the file is as it was.
    """
    path = stats_file(run_dir, split)
    with writing(path, "The lines of earlier epochs are unchanged."):
        path.parent.mkdir(parents=True, exist_ok=True)
        size = path.stat().st_size if path.exists() else 0
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(stats) + "\n")
        except OSError:
            if path.exists():
                os.truncate(path, size)  # a full disk takes a part of a line
            raise


def write_stats(run_dir: Path, split: str, stats: Line) -> None:
    """Write the split's file anew with one line, of what has no epochs: a run that was killed after it does so again.

    Raises:
        RunFolderError: it cannot be written; the file is as it was.
    """
    path = stats_file(run_dir, split)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, (json.dumps(stats) + "\n").encode())


def trim_stats(run_dir: Path, epoch: int) -> None:
    """Drop the lines after `epoch`, and the part of a line that a killed run left at the end.

    Raises:
        ResultsError: a file is damaged; nothing was changed.
        RunFolderError: a file cannot be read or written.
    """
    kept = {split: [text for line, text in _lines(run_dir, split) if line["epoch"] <= epoch] for split in SPLITS}
    for split, texts in kept.items():
        path = stats_file(run_dir, split)
        if path.exists():
            with writing(path):
                replace_file(path, b"".join(text + b"\n" for text in texts))


def sync_stats(run_dir: Path) -> None:
    """Force the lines written so far to disk: a checkpoint that outlives a power failure needs its statistics."""
    for path in (stats_file(run_dir, split) for split in SPLITS):
        if path.exists():
            with writing(path), open(path, "rb") as file:
                os.fsync(file.fileno())


def lost_epochs(run_dir: Path, split: str, expected: Iterable[int]) -> str:
    """Return which epochs a split's file lacks, such as ``val/stats.json lacks epochs 2, 3``; empty if none.

    Of ``expected`` no more is read than the message needs: the name of a stray file may claim any epoch.

    Raises:
        ResultsError: the file is damaged.
    """
    lines = read_stats(run_dir, split)
    lost = list(islice((epoch for epoch in expected if epoch not in lines), MAX_NAMED + 1))
    if not lost:
        return ""
    more = " and more" if len(lost) > MAX_NAMED else ""
    return f"{stats_file(run_dir, split)} lacks epoch{'s' * (len(lost) > 1)} {str(lost[:MAX_NAMED])[1:-1]}{more}"


def same_line(one: Line, other: Line | None) -> bool:
    """Return whether two lines hold the same measurements; NaN equals NaN."""
    return other is not None and _measured(one) == _measured(other)


def _measured(line: Line) -> str:
    return json.dumps({key: value for key, value in line.items() if key not in ETA}, sort_keys=True)


def numbers(line: Line) -> list[str]:
    """Return the keys of a line whose values are numbers."""
    return [key for key, value in line.items() if is_number(value)]


def metric_names(line: Line) -> list[str]:
    """Return the metrics that a line holds, in its order, without the loss."""
    return [key for key in numbers(line) if key not in (*BOOKKEEPING, "loss")]
