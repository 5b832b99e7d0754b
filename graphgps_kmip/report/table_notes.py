"""Notes below a result table: how to read it, tuning, significance of differences, the paper's claims, provenance.

A claim of an experiment's table is the name of a check and its options: ``{check: rank, row: GPS+kMIP, rank: 2}``.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import scipy

from graphgps_kmip.common.environment import duration
from graphgps_kmip.experiments.hyperparameter_search import SearchRecord
from graphgps_kmip.experiments.run_status import State, Status
from graphgps_kmip.report.result_table import TRIALS, VALUES, Cell, Ours, ResultTable
from graphgps_kmip.report.welch import (
    LEVEL,
    UNKNOWN_SIZES,
    Difference,
    compare_runs,
    corrected_t,
    difference_text,
    holm,
    welch,
)

Pairs = Mapping[tuple[str, str, str], Difference]  # column, first and second row -> first - second
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
    yield from significance_notes(table, partial)
    yield from claim_notes(table, partial)
    alone, others = ([(row, side) for row, side in filled if side.alone is timed] for timed in (True, False))
    if alone:
        rows = ", ".join(dict.fromkeys(row for row, _ in alone))
        place = f", on {'; '.join(machines)}" if (machines := list_machines(alone)) else ""
        yield f"seconds and memory of one run that had the machine to itself (`run --timing`{place}): {rows}."
    yield from _failures(places)
    if machines := list_machines(others):
        differ = "; seconds, and what is trained for a number of them, differ with it" if len(machines) > 1 else ""
        yield f"our hardware: {'; '.join(machines)}{differ}."
    if table.printed_hardware:
        yield f"the paper's hardware: {table.printed_hardware}."
    yield from table.notes


def list_machines(filled: Iterable[tuple[str, Ours]]) -> list[str]:
    """Return the machines of the runs, each with its rows where there are several: their seconds are not the same."""
    machines: dict[str, dict[str, None]] = {}
    for row, side in filled:
        for status in side.sources.values():
            if facts := status.record.get("hardware"):
                machines.setdefault(describe_hardware(facts), {})[row] = None
    return [
        f"{machine} ({', '.join(rows)})" if len(machines) > 1 else machine for machine, rows in sorted(machines.items())
    ]


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


class Comparison(str):
    """A note on the differences of pairs of rows, which has its parts too: pages show them in columns.

    Args:
        heading: column of the table, what is compared, units and test.
        rows: pair, difference, interval and corrected p of each.
    """

    heading: str
    rows: list[tuple[str, str, str, str]]

    def __new__(cls, heading: str, listed: Pairs, family: Pairs) -> Comparison:  # noqa: D102
        corrected = holm({key: pair.p for key, pair in family.items() if pair.p is not None})
        rows = []
        for key, pair in listed.items():
            value, _, interval = difference_text(pair).partition(" ")
            rows.append((f"{key[1]} - {key[2]}", value, interval, f"{corrected[key]:.2g}" if key in corrected else ""))
        texts = [f"{pair} {value} {interval}{f', p {p}' if p else ''}" for pair, value, interval, p in rows]
        note = super().__new__(cls, f"{heading}: {'; '.join(texts)}.")
        note.heading, note.rows = heading, rows
        return note


def significance_notes(table: ResultTable, partial: bool = False) -> Iterator[str]:
    """Yield differences: that k-MIP makes, of rows in `compare`, and of equally tuned models of the best row to others.

    Only rows whose runs in a column are complete, with `partial` also those of one split with two or more: splits
    differ, so that a mean of some is not one of all. If the best row is below the best printed number, none are ranked.
    """
    columns = dict(_score_columns(table, partial))
    kinds = {
        "with k-MIP minus without": [(row, row.removesuffix("+kMIP")) for row in table.rows if row.endswith("+kMIP")],
        "differences": table.compare,
    }
    families = {
        kind: {
            (column, *rows): compare_runs(*(sides[row] for row in rows))
            for column, sides in columns.items()
            for rows in listing
            if set(rows) <= set(sides)
        }
        for kind, listing in kinds.items()
    }
    for column, sides in columns.items():
        for kind, pairs in families.items():
            if listed := {key: pair for key, pair in pairs.items() if key[0] == column}:
                method = _describe_method(table, column, sides, len(pairs))
                yield Comparison(f"{column}, {kind}, {method}", listed, pairs)
        tuned = {row: side for row, side in sides.items() if row in table.searches and side.complete}
        if len(tuned) < 2:
            continue
        if below := below_printed(table, column, tuned):
            yield below
            continue
        best = _find_best(tuned, table.columns[column])
        every = {}  # the best is chosen by the same runs, so that every pair counts
        for first, second in itertools.combinations(tuned, 2):
            first, second = (second, first) if second == best else (first, second)
            every[column, first, second] = compare_runs(tuned[first], tuned[second])
        listed = {key: pair for key, pair in every.items() if key[1] == best}
        method = _describe_method(table, column, tuned, len(every))
        yield Comparison(f"{column}, the best row minus each other one, {method}", listed, every)


def _score_columns(table: ResultTable, partial: bool = False) -> Iterator[tuple[str, dict[str, Ours]]]:
    """Yield each column of scores with our rows that are to be compared, unless these are on sample data."""
    others = {*VALUES, TRIALS} - {"score"}  # kinds that end the name of a column
    for column, facts in {} if table.sample else table.columns.items():
        sides = {row: cells[column].ours for row, cells in table.rows.items()}
        sides = {
            row: side
            for row, side in sides.items()
            if side and side.seeds and side.n > 1 and side.shown(partial and side.overlap == 0)
        }
        if facts.get("better") and facts.get("ranked", True) and column.rpartition(" ")[2] not in others:
            yield column, {row: side for row, side in sides.items() if all(map(math.isfinite, side.values))}


def _describe_method(table: ResultTable, column: str, sides: Mapping[str, Ours], comparisons: int) -> str:
    """Return in words what an interval is of and in which unit, and what its p is corrected for."""
    unit, overlap = table.columns[column].get("unit"), next(iter(sides.values())).overlap
    unit = f"in {'percentage points' if unit == '%' else unit}, " if unit else ""
    if overlap is None:
        return f"{unit}without intervals: {UNKNOWN_SIZES}"
    test = "Welch's t over runs of one split"
    if overlap:
        ratio = f"n_test / n_train = {overlap:.3g}"
        test = f"the corrected resampled t over splits (Nadeau and Bengio 2003; {ratio})"
    family = f"p by Holm for {comparisons} comparison{'s' * (comparisons > 1)}"
    return f"{unit}{LEVEL:.0%} interval and two-sided p of {test}, {family}"


def _find_best(means: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return the row with the best mean."""
    best = max if facts["better"] == "higher" else min
    return best(means, key=lambda row: means[row].mean)


def below_printed(table: ResultTable, column: str, sides: Mapping[str, Ours]) -> str:
    """Return a note if our best row is below the best printed number by more than the interval, else an empty text."""
    facts, printed = table.columns[column], {row: cells[column].printed for row, cells in table.rows.items()}
    printed = {row: cell for row, cell in printed.items() if cell and cell.mean is not None}
    if not (printed and sides):
        return ""
    best, top = _find_best(sides, facts), _find_best(printed, facts)
    side, source = sides[best], ""
    difference = welch(side, printed[top], side.overlap)
    if difference.low is None:
        difference = corrected_t([value - printed[top].mean for value in side.values], side.overlap)
        source = " of our runs alone"
    if difference.low is None or not (difference.high < 0 if facts["better"] == "higher" else difference.low > 0):
        return ""
    return (
        f"{column}: our best row, {best}, is worse than the best printed number, {top} {printed[top].text}, by more "
        f"than the interval{source}: {difference_text(difference)}. No conclusion about the ranking of models is drawn."
    )


def rank_notes(tables: Sequence[ResultTable]) -> Iterator[str]:
    """Yield mean ranks of equally tuned models (Demšar 2006) over sets where two are complete, if complete in all."""
    sets = {}
    for table in tables:
        for column, sides in _score_columns(table):
            tuned = {row: side for row, side in sides.items() if row in table.searches}
            sign = -1 if table.columns[column]["better"] == "higher" else 1
            if len(tuned) > 1 and not below_printed(table, column, tuned):
                sets[column.removesuffix(" score")] = {row: sign * side.mean for row, side in tuned.items()}
    shared = [row for row in next(iter(sets.values()), {}) if all(row in means for means in sets.values())]
    if len(sets) < 2 or len(shared) < 2:
        yield (
            "ranks over data sets: at least two models must be complete on two data sets where our best row is not "
            "worse than the best printed number."
        )
        return
    ranks = scipy.stats.rankdata([[means[row] for means in sets.values()] for row in shared], axis=0).mean(axis=1)
    order = sorted(zip(ranks, shared, strict=True))
    yield (
        f"mean rank over {', '.join(sets)}, of the models that all of them have: "
        f"{', '.join(f'{row} {rank:.1f}' for rank, row in order)}. So few data sets are no test of these ranks."
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
        name = claim["check"]
        rows = [claim[key] for key in ("row", "than") if key in claim] + list(claim.get("rows", ()))
        columns = list(claim.get("columns", table.columns))
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
        runs = sorted({side.n for sides in scores.values() for side in sides.values()})
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
            record, seconds = status.record, read_seconds(status.record)
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


def read_seconds(record: dict[str, Any]) -> float | None:
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
    return duration(sum(read_seconds(record) or 0.0 for record in records)) if records else ""
