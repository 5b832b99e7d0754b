"""What a check found: one outcome for each thing that was tried, one line for each component, one JSON file."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graphgps_kmip.common.atomic_write import replace_file

OK, FAILED, SKIPPED = "ok", "FAILED", "skipped"


class NotHere(Exception):
    """This cannot be tried on this machine; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """One thing that was tried.

    Args:
        kind (str): "search backend", "attention", "message passing", "model", ...
        name (str): the component.
        tried (str): what was compared.
        status (str): `OK`, `FAILED` or `SKIPPED`.
        detail (str): the largest relative error, or the reason.
        seconds (float): what it took.
    """

    kind: str
    name: str
    tried: str
    status: str
    detail: str
    seconds: float


def attempt(kind: str, name: str, tried: str, check: Callable[[], str | None], debug: bool = False) -> Outcome:
    """Run a check, which returns a detail or raises, and return what came of it.

    Args:
        kind (str): as in `Outcome`.
        name (str): likewise.
        tried (str): likewise.
        check (callable): raises `NotHere` where it cannot be tried, anything else where something is wrong.
        debug (bool, optional): print the traceback of what is wrong. (default: False)
    """
    start = time.perf_counter()
    try:
        status, detail = OK, check() or ""
    except NotHere as reason:
        status, detail = SKIPPED, str(reason)
    except Exception as error:  # compilers, drivers and kernels raise anything
        if debug:
            traceback.print_exc()
        status, detail = FAILED, f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    return Outcome(kind, name, tried, status, detail, time.perf_counter() - start)


def lines(outcomes: Iterable[Outcome]) -> list[str]:
    """Return one line for each component, and one below it for each thing that failed or could not be tried."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault((one.kind, one.name), []).append(one)
    width = max((len(f"{kind} {name}") for kind, name in groups), default=0)
    return [line for (kind, name), found in groups.items() for line in _component(f"{kind} {name}".ljust(width), found)]


def _component(title: str, found: list[Outcome]) -> list[str]:
    passed = [one for one in found if one.status == OK]
    details = "; ".join(f"{one.tried} {one.detail}" for one in passed if one.detail)
    status = FAILED if any(one.status == FAILED for one in found) else OK if passed else SKIPPED
    head = f"{status:7}  {title}  {len(passed)} of {len(found)}"
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in found:
        if one.status != OK:
            reasons.setdefault((one.status, one.detail), []).append(one.tried)
    rest = [f"         {status}: {'; '.join(tried)}: {detail}" for (status, detail), tried in reasons.items()]
    return [f"{head}  {details}".rstrip(), *rest]


def write_json(path: Path, facts: dict[str, Any], outcomes: list[Outcome], speed: list[dict[str, Any]]) -> None:
    """Write everything into one file, to be attached to an issue."""
    content = {**facts, "outcomes": [asdict(one) for one in outcomes], "speed": speed}
    replace_file(path, (json.dumps(content, indent=1) + "\n").encode())
