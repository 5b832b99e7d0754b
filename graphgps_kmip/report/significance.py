"""Significance: differences between the rows of a result table, with intervals and corrected p, and ranks over sets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import scipy

from graphgps_kmip.report.result_table import TRIALS, VALUES, Ours, ResultTable
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


def significance_notes(table: ResultTable) -> Iterator[str]:
    """Yield differences: that k-MIP makes, of rows in `compare`, and of equally tuned models of the best row to others.

    Only rows whose runs in a column are complete. If the best row is below the best printed number, none are ranked.
    """
    columns = dict(_score_columns(table))
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
        if len(tuned := {row: side for row, side in sides.items() if row in table.searches}) < 2:
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


def _score_columns(table: ResultTable) -> Iterator[tuple[str, dict[str, Ours]]]:
    """Yield each column of scores with our complete rows of at least two runs, unless these are on sample data."""
    others = {*VALUES, TRIALS} - {"score"}  # kinds that end the name of a column
    for column, facts in {} if table.sample else table.columns.items():
        sides = {row: cells[column].ours for row, cells in table.rows.items()}
        sides = {row: side for row, side in sides.items() if side and side.complete and side.n > 1 and side.seeds}
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
