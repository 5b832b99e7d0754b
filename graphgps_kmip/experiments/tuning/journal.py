"""The journal of a search: lines of JSON that are only ever appended, and a page for people that is made of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.common.json_files import Damaged, parsed_object, read_bytes
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.experiments.trial_log import page_of
from graphgps_kmip.results.run_folder import writing

WAITING = "waiting"
NOT_NEWS = {"date", "why"}  # what may differ when a finished run is met again


class Journal:
    """A journal on disk: ``<name>.jsonl``, and ``<name>.md`` beside it, which is written anew with every line.

    Args:
        file: the ``.jsonl``; a line that a killed process left unfinished at its end is dropped.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        drop_torn_line(file)
        self.entries: dict[tuple[str, str], dict[str, Any]] = {}
        for entry in _entries(file):
            self.entries[entry["kind"], entry["name"]] = entry

    @property
    def page(self) -> Path:
        """Return the page for people."""
        return self.file.with_suffix(".md")

    def note(self, kind: str, name: str, **facts: Any) -> None:
        """Append a line, unless the last one of this kind and name says the same; it takes the place of that one."""
        known = self.entries.get((kind, name))
        entry = {"date": _now(), "kind": kind, "name": name, **facts}
        if known is None or _news(known) != _news(entry):
            with writing(self.file), open(self.file, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())
            self.entries[kind, name] = entry
        self.rebuild()

    def rebuild(self) -> None:
        """Write the page anew from the lines."""
        with writing(self.page):
            replace_file(self.page, page_of(list(self.entries.values())).encode())


def drop_torn_line(file: Path) -> None:
    """Cut off what follows the last end of line: a killed process left it, and the next line must not join it."""
    if file.exists():
        content = file.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            with writing(file):
                replace_file(file, whole)


def _entries(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a journal's file, which ends with a whole line.

    Raises:
        ResultsError: a line is damaged.
    """
    for number, line in enumerate((read_bytes(file) or b"").split(b"\n")[:-1], start=1):
        try:
            entry = parsed_object(line)
            if not all(isinstance(entry.get(key), str) for key in ("kind", "name")):
                raise Damaged("it has no kind and name")
        except Damaged as damage:
            raise ResultsError(
                f"{file}, line {number} is damaged ({damage}): restore the file, or delete it and search again, which "
                "takes finished trials as they are"
            ) from damage
        yield entry


def _news(entry: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in entry.items() if key not in NOT_NEWS}, sort_keys=True)


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
