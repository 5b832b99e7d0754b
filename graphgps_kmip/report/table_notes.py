"""Notes below a result table: how to read it, tuning, paired tests, the paper's claims on our rows, provenance.

A claim of an experiment's table is the name of a check and its options: ``{check: rank, row: GPS+kMIP, rank: 2}``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import scipy

from graphgps_kmip.common.environment import duration
from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.experiments.hyperparameter_search import SearchRecord
from graphgps_kmip.experiments.run_status import State, Status
from graphgps_kmip.report.result_table import Cell, ResultTable
from graphgps_kmip.report.welch import LEVEL, Scores, against_best, mean_ranks, smallest_p

PUBLISHED = "†"  # after numbers of published runs
SPREAD = "ours: mean ± sample standard deviation (n - 1) over n runs"
OTHER_SPREAD = "the papers do not say which kind theirs is"
DIFFERENCE = "difference: ours - paper, with Welch's 95 % interval; n: ours / paper"
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


def significance_notes(table: ResultTable) -> Iterator[str]:
    """Yield ranks and paired tests of a table of equally tuned models, of those whose runs in a column are complete."""
    for column, facts in table.columns.items() if table.searches and not table.sample else ():
        sides = {row: table.rows[row][column].ours for row in table.searches}
        scores = {row: side.values for row, side in sides.items() if side and side.complete and side.n > 1}
        finite = all(math.isfinite(value) for values in scores.values() for value in values)
        same_runs = len({sides[row].seeds for row in scores}) == 1
        if not (column.endswith(" score") and len(scores) > 1 and same_runs and finite):
            continue
        name = column if len(scores) == len(table.rows) else f"{column}, the {len(scores)} models that are complete"
        runs = len(next(iter(scores.values())))
        yield f"{name}, mean rank over {runs} runs: {_join_ranks(scores, facts['better'])}."
        best, others = against_best(scores, facts["better"])
        differences = "; ".join(
            f"{row} {versus.difference:+.2f} [{versus.low:+.2f}, {versus.high:+.2f}], p {versus.p:.3g}"
            for row, versus in others.items()
        )
        yield (
            f"{name}, {best} minus each, paired by run: mean, {LEVEL:.0%} bootstrap interval, p of Wilcoxon's test "
            f"after Holm's correction: {differences}."
        )
        if smallest_p(runs) * len(others) > 1 - LEVEL:
            yield (
                f"{runs} runs are too few for these tests: the smallest p that they allow, before the correction, is "
                f"{smallest_p(runs):.3g}."
            )


def _join_ranks(scores: Scores, better: str) -> str:
    ranks = sorted(mean_ranks(scores, better).items(), key=lambda pair: pair[1])
    return ", ".join(f"{row} {rank:.1f}" for row, rank in ranks)


def rank_notes(tables: Sequence[ResultTable]) -> Iterator[str]:
    """Yield mean ranks of equally tuned models (Demšar 2006) over sets where two are complete, if complete in all."""
    sets = {}
    for table in tables:
        for column, facts in table.columns.items() if table.searches and not table.sample else ():
            sides = {row: table.rows[row][column].ours for row in table.searches}
            sign = -1 if facts.get("better") == "higher" else 1
            means = {row: sign * side.mean for row, side in sides.items() if side and side.complete}
            if column.endswith(" score") and len(means) > 1:
                sets[column.removesuffix(" score")] = means
    first = next(iter(sets.values()), {})
    shared = {row: [means.get(row) for means in sets.values()] for row in first}
    shared = {row: means for row, means in shared.items() if None not in means}
    if len(sets) < 2 or len(shared) < 2:
        yield "ranks over data sets: at least two models must be complete on two data sets."
        return
    yield (
        f"mean rank over {', '.join(sets)}, of the models that all of them have: {_join_ranks(shared, 'lower')}. "
        "So few data sets are no test of these ranks."
    )


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
        scores: dict[str, dict[str, Sequence[float]]] = {column: {} for column in columns}
        missing = dict[str, None]()
        for row in table.rows if name == "rank" else rows:
            for column in columns:
                side = table.rows[row][column].ours
                if side is not None and side.shown(partial) and side.n > 1 and all(map(math.isfinite, side.values)):
                    scores[column][row] = side.values
                elif side is not None:  # else the row is only quoted
                    missing[row] = None
        if missing:
            yield f"{text}: not yet run ({', '.join(missing)})."
            continue
        better = {column: table.columns[column].get("better") for column in columns}
        holds, numbers = _check_claim(name, claim, scores, better)
        runs = sorted({len(values) for of_column in scores.values() for values in of_column.values()})
        count = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
        yield f"{text}: {'holds' if holds else 'does NOT hold'} for our rows ({numbers}; {count} runs each)."


def _check_claim(
    name: str, claim: Mapping[str, Any], scores: Mapping[str, Scores], better: Mapping[str, str | None]
) -> tuple[bool, str]:
    """Return whether a claim holds, and by which numbers."""
    if name == "rank":
        ranks = {}
        for column, values in scores.items():
            sign = 1 if better[column] == "higher" else -1
            means = {row: sign * sum(of_row) / len(of_row) for row, of_row in values.items()}
            ranks[column] = 1 + sum(mean > means[claim["row"]] for mean in means.values())
        numbers = ", ".join(f"rank {rank} of {len(scores[column])} on {column}" for column, rank in ranks.items())
        return set(ranks.values()) == {claim["rank"]}, numbers
    p_values = {}
    for column, values in scores.items():
        if name == "flat":
            test, p = "one-way analysis of variance", scipy.stats.f_oneway(*values.values()).pvalue
        else:
            test, worse = "one-tailed Welch's t-test", "less" if better[column] == "higher" else "greater"
            pair = values[claim["row"]], values[claim["than"]]
            p = scipy.stats.ttest_ind(*pair, equal_var=False, alternative=worse).pvalue
        p_values[column] = float(p)
    numbers = ", ".join(f"p {p:.3g} on {column}" for column, p in p_values.items())
    return not any(p < CLAIM_LEVEL for p in p_values.values()), f"{test} at {CLAIM_LEVEL:.0%}: {numbers}"


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
