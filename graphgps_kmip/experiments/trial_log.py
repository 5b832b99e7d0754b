"""The page of a search's journal, in Markdown."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Entry = Mapping[str, Any]


def page_of(entries: Sequence[Entry]) -> str:
    """Return the page: what is searched, the trials, the choice and why, the final seeds, and how to run it by hand.

    Args:
        entries: of kind ``search``, ``trial``, ``choice`` and ``final``, the latest of each name.
    """
    by_kind: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_kind[entry["kind"]].append(entry)
    sections = [_head(by_kind["search"]), _trials(by_kind["trial"])]
    for choice in by_kind["choice"]:
        sections += [_choice(choice, by_kind["trial"]), _finals(by_kind["final"], choice), _by_hand(choice)]
    return "\n".join(line for section in sections for line in section)


def _head(entries: Sequence[Entry]) -> list[str]:
    lines = []
    for one in entries:
        fixed = [f"`{key} {value}`" for key, value in one["fixed"].items()]
        lines += [
            f"# Search of {one['config']} for {one['experiment']}{', on sample data' if one['sample'] else ''}",
            "",
            f"Engine: {one['engine']}. Ranges: {one['source']}. One run of each configuration, seed {one['seed']}.",
            *([f"All have {' and '.join(fixed)}."] if fixed else []),
            f"Begun {_date(one)}. Scores are as in record.json, without a factor of 100.",
            "",
            *_table(
                ["factor", "default", "range"],
                [[name, default, ", ".join(values)] for name, (default, values) in one["factors"].items()],
            ),
        ]
    return lines


def _trials(trials: Sequence[Entry]) -> list[str]:
    rows = [
        [
            str(number),
            f"`{one['name']}`",
            _changes(one["differing"]),
            one["why"],
            _number(one.get("value")),
            _whole(one.get("params")),
            _duration(one.get("seconds")),
            _state(one),
            _date(one),
        ]
        for number, one in enumerate(trials, start=1)
    ]
    head = ["#", "trial", "differs from the default", "why", "validation", "parameters", "time", "state", "date"]
    return ["## Trials", "", "Nothing is chosen by the test split, and it is not shown here.", "", *_table(head, rows)]


def _choice(choice: Entry, trials: Sequence[Entry]) -> list[str]:
    finished = sum(one.get("value") is not None for one in trials)
    default = next((_score(one) for one in trials if not one["differing"]), "not tried")
    lines = [
        "## Choice",
        "",
        f"`{choice['trial']}` has the {choice['better']} validation {choice['metric']}, {_number(choice['value'])}, of "
        f"{finished} finished trials (tried: {len(trials)}; the default: {default}). The first of equals is taken.",
        *([choice["remark"]] if choice["remark"] else []),
        "",
    ]
    rows = []
    for name, (standard, values) in choice["factors"].items():
        alone = {one["differing"].get(name, standard): one for one in trials if one["differing"].keys() <= {name}}
        tried = [f"{value}: {_score(alone[value])}" for value in values if value in alone]
        rows.append([name, "; ".join(tried), choice["choice"][name]])
    return lines + _table(["factor", "validation, the others at their default", "chosen"], rows)


def _finals(finals: Sequence[Entry], choice: Entry) -> list[str]:
    rows = [
        [
            one["folder"],
            str(one["seed"]),
            _number(one["value"]),
            _number(one["test"]),
            _duration(one["seconds"]),
            _state(one),
        ]
        for one in finals
        if one["folder"] in choice["folders"]
    ]
    lines = ["## Final seeds", "", *_table(["run", "seed", "validation", "test", "time", "state"], rows)]
    for folder in choice["folders"]:
        ours = [one for one in finals if one["folder"] == folder]
        tests = [one["test"] for one in ours if one["test"] is not None]
        if tests:
            spread = f" ± {_number(statistics.stdev(tests))}" if len(tests) > 1 else ""
            lines.append(f"- {folder}: test {choice['metric']} {_number(statistics.mean(tests))}{spread}")
            lines[-1] += f" ({len(tests)} of {len(ours)} seeds; sample standard deviation)"
    return [*lines, ""]


def _by_hand(choice: Entry) -> list[str]:
    return [
        "## By hand",
        "",
        "```bash",
        *choice["commands"],
        "```",
        "",
        "or as a YAML file beside that of the run:",
        "",
        "```yaml",
        *choice["yaml"].splitlines(),
        "```",
        "",
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    return [*(f"| {' | '.join(one.replace('|', '/') for one in row)} |" for row in cells), ""]


def _state(entry: Entry) -> str:
    return f"{entry['state']}: {entry['error']}" if entry.get("error") else entry["state"]


def _score(trial: Entry) -> str:
    return trial["state"] if trial.get("value") is None else _number(trial["value"])


def _changes(differing: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in differing.items())


def _number(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.4g}"


def _whole(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    hours, minutes = divmod(round(seconds) // 60, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {round(seconds) % 60:02d} s"


def _date(entry: Entry) -> str:
    return str(entry["date"])[:16].replace("T", " ")
