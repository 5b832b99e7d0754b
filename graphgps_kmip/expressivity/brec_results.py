"""Results of BREC: one JSON line per pair in a file that an interrupted run goes on with, and the table by category."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphgps_kmip.common.atomic_write import Damaged, is_count, parsed_object, read_bytes, replace_file
from graphgps_kmip.errors import ResultsError

log = logging.getLogger(__name__)
Result = dict[str, Any]
TOTAL = "total"


def resume_results(path: Path, settings: Mapping[str, Any]) -> dict[int, Result]:
    """Return the results of a file by pair, ready to be continued; a new file gets its first line, the settings.

    Lines that are no result, as a killed run leaves them, are removed and the log says how many.

    Args:
        path (Path): The file.
        settings (Mapping): What decides the numbers: plain values.

    Raises:
        ResultsError: the file has results of other settings.
    """
    content = _content(path)
    if content is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, _text([{"settings": dict(settings)}]))
        return {}
    settings_there, results, damaged = content
    if settings_there != json.loads(json.dumps(dict(settings))):
        raise ResultsError(
            f"{path} has results of other settings ({settings_there}): move it away, or set another out_dir"
        )
    if damaged:
        log.warning("%s: %d damaged lines are removed, their pairs are repeated", path, damaged)
        replace_file(path, _text([{"settings": settings_there}, *results.values()]))
    return results


def append_result(path: Path, result: Result) -> None:
    """Append the result of a pair, on disk before the return."""
    with open(path, "ab") as file:
        file.write(_text([result]))
        file.flush()
        os.fsync(file.fileno())


def read_results(path: Path) -> tuple[dict[str, Any], dict[int, Result]]:
    """Return settings and results by pair, in the order of pairs.

    Raises:
        ResultsError: there is no such file, or its first line is damaged.
    """
    content = _content(path)
    if content is None:
        raise ResultsError(f"{path} is missing: run train.mode brec first")
    return content[0], dict(sorted(content[1].items()))


def _content(path: Path) -> tuple[dict[str, Any], dict[int, Result], int] | None:
    """Return settings, results, and the number of damaged lines; None if there is no file."""
    try:
        text = read_bytes(path)
        if text is None:
            return None
        first, *lines = text.split(b"\n")
        settings = parsed_object(first).get("settings")
        if not isinstance(settings, dict):
            raise Damaged("its first line has no settings")
    except Damaged as damage:
        raise ResultsError(f"{path} cannot be used ({damage}): move it away and run again") from None
    results: dict[int, Result] = {}
    damaged = int(not lines or lines[-1] != b"")  # a line without its end
    for line in lines[:-1]:
        try:
            result = parsed_object(line)
        except Damaged:
            result = {}
        if is_count(result.get("pair")) and isinstance(result.get("distinguished"), bool):
            results[result["pair"]] = result
        else:
            damaged += 1
    return settings, results, damaged


def _text(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()


@dataclass(frozen=True)
class CategoryRow:
    """Counts of the pairs of a category.

    Args:
        category (str): Its name.
        pairs (int): How many it has.
        tested (int): How many have a result.
        distinguished (int): How many were distinguished.
        unreliable (int): How many failed the reliability test; distinguished or not.
        failed (int): How many gave outputs that are not finite.
    """

    category: str
    pairs: int
    tested: int
    distinguished: int
    unreliable: int
    failed: int


def category_rows(results: Mapping[int, Result], categories: Mapping[str, Sequence[int]]) -> list[CategoryRow]:
    """Return the row of each category, and of all pairs.

    Args:
        results (Mapping): Pair -> result; ``distinguished``, and where there is one ``reliable`` and ``failed``.
        categories (Mapping): Name -> its pairs.
    """
    every = sorted({pair for pairs in categories.values() for pair in pairs})
    rows = []
    for name, pairs in [*categories.items(), (TOTAL, every)]:
        tested = [results[pair] for pair in pairs if pair in results]
        distinguished = sum(result["distinguished"] for result in tested)
        failed = sum(bool(result.get("failed")) for result in tested)
        unreliable = sum(not (result.get("reliable", True) or result.get("failed")) for result in tested)
        rows.append(CategoryRow(name, len(pairs), len(tested), distinguished, unreliable, failed))
    return rows


def table_text(rows: Sequence[CategoryRow]) -> str:
    """Return the rows as text; as the public script of the method, failures of reliability are counted apart."""
    lines = [f"{'':<12}{'pairs':>7}{'tested':>8}{'distinguished':>15}{'unreliable':>12}{'not finite':>12}"]
    for row in rows:
        counts = f"{row.pairs:>7}{row.tested:>8}{row.distinguished:>15}{row.unreliable:>12}{row.failed:>12}"
        lines.append(f"{row.category:<12}{counts}")
    total = rows[-1]
    if total.tested:
        share = 100 * total.distinguished / total.tested
        lines.append(f"{total.distinguished} of {total.tested} tested pairs are distinguished ({share:.1f} %)")
    return "\n".join(lines)
