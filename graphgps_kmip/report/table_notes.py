"""Notes below a result table: how to read it, tuning, differences of rows, the paper's claims, provenance.

A claim of an experiment's table is the name of a check and its options: ``{check: rank, row: GPS+kMIP, rank: 2}``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import scipy

from graphgps_kmip.common.environment import duration
from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.experiments.hyperparameter_search import SearchRecord
from graphgps_kmip.experiments.run_status import State, Status
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable
from graphgps_kmip.report.significance import significance_notes
from graphgps_kmip.report.welch import compare_runs

PUBLISHED = "†"  # after numbers of published runs
SPREAD = "ours: mean ± sample standard deviation (n - 1) over n runs"
OTHER_SPREAD = "the papers do not say which kind theirs is"
DIFFERENCE = "difference: ours - paper, with Welch's 95 % interval; n: ours / paper"
OVERLAP = (
    "runs are over random splits, which share nodes: with n_test / n_train = {}, the variance of a mean is taken as "
    "(1 / n + n_test / n_train) s^2 on both sides (Nadeau and Bengio 2003), the printed spread as one over splits too."
)
SETTINGS = {
    "exact": "exact: the paper's settings are known to the last",
    "ours": "ours: some settings are not printed, and chosen by us",
    "none": "none: no number is printed",
    "quoted": "quoted: the paper's number alone, nothing runs here",
}


def table_notes(table: ResultTable, partial: bool) -> Iterator[str]:
    """Yield the notes of a table, written with or without `partial` means."""
    places = list(table.places())
    printed = [cell.printed for *_, cell in places if cell.printed]
    filled = [(row, cell.ours) for row, _, cell in places if cell.ours]
    if not places:
        yield f"Nothing to show yet: {table.experiment} has not run."
    yield f"{SPREAD}; {OTHER_SPREAD}." if any(cell.std is not None for cell in printed) else f"{SPREAD}."
    if printed:
        yield f"{DIFFERENCE}."
        if overlaps := {side.overlap for _, side in filled if side.overlap}:
            yield OVERLAP.format(", ".join(f"{overlap:.3g}" for overlap in sorted(overlaps)))
        differences = [cell.difference(partial) for *_, cell in places]
        if reasons := Counter(difference.reason for difference in differences if difference and difference.reason):
            counts = "; ".join(f"{reason}, {count} cell{'s' * (count > 1)}" for reason, count in reasons.items())
            yield f"[-]: no interval can be given ({counts})."
    used = set(table.settings.values())
    if printed or used - {"none"}:
        yield f"settings {'; '.join(text for name, text in SETTINGS.items() if name in used)}."
    if published := dict.fromkeys(row for row, side in filled if side.published):
        yield f"{PUBLISHED}: published runs (run/experiments/published), not made here: {', '.join(published)}."
    yield from tuning_notes(table.searches)
    yield from significance_notes(table)
    yield from claim_notes(table, partial)
    if alone := dict.fromkeys(row for row, side in filled if side.alone):
        yield f"seconds and memory of one run that had the machine to itself (`run --timing`): {', '.join(alone)}."
    yield from _failures(places)
    records = [status.record for _, side in filled for status in side.sources.values()]
    if machines := sorted({describe_hardware(record.get("hardware", {})) for record in records} - {"?"}):
        yield f"our hardware: {'; '.join(machines)}."
    if table.printed_hardware:
        yield f"the paper's hardware: {table.printed_hardware}."
    yield from table.notes


def _failures(places: list[tuple[str, str, Cell]]) -> Iterator[str]:
    """Yield ``GCN, digits, seed 1; GAT, digits, seed 2 failed: why``, each run once, and each reason once."""
    failed: dict[tuple[str, str], dict[Path, str]] = {}
    for row, column, cell in places:
        for key, status in cell.ours.unfinished.items() if cell.ours else ():
            if status.state in (State.FAILED, State.DIVERGED):
                name = f"{row}, {column}, seed {key}" if isinstance(key, int) else f"command {key}"
                reason = status.state, status.error or "no reason was written"
                failed.setdefault(reason, {}).setdefault(status.path, name)
    yield from (f"{'; '.join(names.values())} {state}: {error}" for (state, error), names in failed.items())


def tuning_notes(searches: Mapping[str, SearchRecord]) -> Iterator[str]:
    """Yield the notes of a table of equally tuned models, from row -> record of the search that chose its settings."""
    if not searches:
        return
    records = searches.values()
    counts = {row: record.trials for row, record in searches.items()}
    equal = len(set(counts.values())) == 1
    trials = f"{next(iter(counts.values()))} trials each" if equal else f"NOT EQUAL, trials: {_join_items(counts)}"
    seeds = "; ".join(dict.fromkeys(record.seeds for record in records))
    yield (
        f"tuning: {trials}, chosen on validation alone, with {seeds}, which no number here is of; all together "
        f"{sum(counts.values())} trials ({sum(record.failed for record in records)} failed) in "
        f"{duration(sum(record.seconds for record in records))}."
    )
    if published := [row for row, record in searches.items() if record.published]:
        yield f"not searched here, but with published choices (run/experiments/published): {', '.join(published)}."
    ranges = {
        row: {name: "/".join(values) for name, (_, values) in record.ranges.items()} for row, record in searches.items()
    }
    first, *others = ranges.values()
    shared = {name: values for name, values in first.items() if all(other.get(name) == values for other in others)}
    yield f"ranges of all models: {_join_items(shared)}."
    for row, record in searches.items():
        further = {name: values for name, values in ranges[row].items() if name not in shared}
        yield (
            f"{row}: {_join_items(record.choice)} (validation {record.metric} {record.value:.4g}, best of "
            f"{record.trials} trials{f', {record.failed} failed' if record.failed else ''}, {duration(record.seconds)}"
            f"{f'; own ranges: {_join_items(further)}' if further else ''})."
        )


def _join_items(items: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in items.items())


CHECKS = {  # name -> what is claimed, of {row}, {than}, {rank} or {rows}
    "rank": "claim, {row} {rank}",
    "not_below": "claim, {row} not significantly worse than {than}",
    "flat": "claim, no difference between {rows}",
}
ORDINALS = ("first", "second", "third")
CLAIM_LEVEL = 0.05


def claim_notes(table: ResultTable, partial: bool) -> Iterator[str]:
    """Yield for each claim whether it holds for our rows (`partial`: of two runs each), or which rows have not run."""
    for claim in () if table.sample else table.claims:
        where = f"{table.experiment}, {table.id}: claim"
        name = str(claim.get("check", ""))
        if name not in CHECKS:
            raise ResultsError(f"{where}: unknown check {name!r}.{suggest(name, CHECKS)}")
        rows = [claim[key] for key in ("row", "than") if key in claim] + list(claim.get("rows", ()))
        columns = list(claim.get("columns", table.columns))
        for key, allowed in (*((row, table.rows) for row in rows), *((column, table.columns) for column in columns)):
            if key not in allowed:
                raise ResultsError(f"{where}: {key!r} is not in the table.{suggest(key, allowed)}")
        values = {"row": claim.get("row"), "than": claim.get("than"), "rows": ", ".join(claim.get("rows", ()))}
        text = CHECKS[name].format(**values, rank=ORDINALS[claim.get("rank", 1) - 1]) + f" on {', '.join(columns)}"
        scores: dict[str, dict[str, Ours]] = {column: {} for column in columns}
        missing = dict[str, None]()
        for row in table.rows if name == "rank" else rows:
            for column in columns:
                side = table.rows[row][column].ours
                if side is not None and side.shown(partial) and side.n > 1 and all(map(math.isfinite, side.values)):
                    scores[column][row] = side
                elif side is not None:  # else the row is only quoted
                    missing[row] = None
        if missing:
            yield f"{text}: not yet run ({', '.join(missing)})."
            continue
        better = {column: table.columns[column].get("better") for column in columns}
        holds, numbers = _check_claim(name, claim, scores, better)
        runs = sorted({side.n for of_column in scores.values() for side in of_column.values()})
        count = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
        yield f"{text}: {'holds' if holds else 'does NOT hold'} for our rows ({numbers}; {count} runs each)."


def _check_claim(
    name: str,
    claim: Mapping[str, Any],
    scores: Mapping[str, Mapping[str, Ours]],
    better: Mapping[str, str | None],
) -> tuple[bool, str]:
    """Return whether a claim holds, and by which numbers."""
    if name == "rank":
        places, numbers = set(), []
        for column, sides in scores.items():
            order = sorted(sides, key=lambda row: sides[row].mean, reverse=better[column] == "higher")  # noqa: B023
            row = claim["row"]
            place = 1 + [sides[other].mean for other in order].index(sides[row].mean)
            places.add(place)
            numbers.append(f"rank {place} of {len(sides)} on {column}")
            if after := next(iter(order[order.index(row) + 1 :]), None):
                p = _one_tailed_p(sides[row], sides[after], better[column])
                numbers[-1] += f", better than {after} with p {p:.2g}"
        test = f"p of the {_name_test(scores)}"
        return places == {claim["rank"]}, f"{'; '.join(numbers)}; {test}"
    p_values = {}
    for column, sides in scores.items():
        if name == "flat":
            test, p = (
                "one-way analysis of variance",
                scipy.stats.f_oneway(*(side.values for side in sides.values())).pvalue,
            )
        else:
            test, p = _name_test(scores), _one_tailed_p(sides[claim["than"]], sides[claim["row"]], better[column])
        p_values[column] = float(p)
    numbers = ", ".join(f"p {p:.3g} on {column}" for column, p in p_values.items())
    return not any(p < CLAIM_LEVEL for p in p_values.values()), f"{test} at {CLAIM_LEVEL:.0%}: {numbers}"


def _one_tailed_p(first: Ours, second: Ours, better: str | None) -> float:
    """Return the p of no difference against ``first is better``; NaN where the runs have no spread."""
    difference = compare_runs(first, second)
    if difference.p is None:
        return math.nan
    ahead = (difference.value > 0) == (better == "higher")
    return difference.p / 2 if ahead else 1 - difference.p / 2


def _name_test(scores: Mapping[str, Mapping[str, Ours]]) -> str:
    overlaps = {side.overlap for sides in scores.values() for side in sides.values()}
    return "one-tailed Welch's t-test" if overlaps == {0} else "one-tailed corrected resampled t-test"


class Origin(NamedTuple):
    """One run or command that a cell, or several cells of a row, are made of."""

    row: str
    columns: list[str]
    run: str
    value: str
    config_hash: str
    code_version: str
    hardware: str
    date: str
    minutes: str
    folder: str


def origins(table: ResultTable) -> list[Origin]:
    """Return the origin of every value in a table, row by row, once for a command that fills many cells of a row."""
    merged: dict[tuple[str, ...], Origin] = {}
    for row, column, side in ((row, column, cell.ours) for row, column, cell in table.places() if cell.ours):
        values = dict(zip(side.seeds, side.values, strict=False))
        for source, status in side.sources.items() if side.values else ():
            record, seconds = status.record, seconds_of(status.record)
            config_hash, value = record.get("config_hash", ""), f"{values[source]:.6g}" if values else ""
            origin = Origin(
                row=row,
                columns=[column],
                run=f"seed {source}" if values else str(source),
                value=value,
                config_hash=config_hash if len(config_hash) <= 12 else "",  # of a command it is its text
                code_version=str(record.get("code_version", "?")),
                hardware=describe_hardware(record.get("hardware", {})),
                date=str(record.get("finished_at", "?"))[:16].replace("T", " "),
                minutes="?" if seconds is None else f"{seconds / 60:.1f}",
                folder=str(status.path),
            )
            key = (row, origin.run, origin.folder, *([column] if value else ()))
            if key in merged:
                merged[key].columns.append(column)
            else:
                merged[key] = origin
    return list(merged.values())


def seconds_of(record: dict[str, Any]) -> float | None:
    """Return how long a run or command took; None where its record does not say."""
    return record.get("wall_time", record.get("seconds"))


def describe_hardware(facts: dict[str, Any]) -> str:
    """Return the GPU or CPU of a run in a few words."""
    if not facts:
        return "?"
    return str(facts.get("gpu") or f"{facts.get('cpu', 'CPU')}, {facts.get('cores', '?')} cores")


def total_time(statuses: Iterable[Status]) -> str:
    """Return how long the finished ones took together, such as ``3 h 30 min``; empty if none is finished."""
    records = [status.record for status in statuses if status.state is State.DONE]
    return duration(sum(seconds_of(record) or 0.0 for record in records)) if records else ""
