"""Claims of the papers about a table, checked on our rows: notes below the table that makes the claim.

A table of ``run/experiments`` lists its claims, each with the name of a check and its options: ``{check: rank, row:
GPS+kMIP, rank: 2}``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import scipy

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report.result_table import ResultTable

LEVEL = 0.05
ORDINALS = ("first", "second", "third")
Scores = dict[str, dict[str, tuple[float, ...]]]  # column -> row -> values of our runs
Verdict = tuple[bool, str]  # whether the claim holds, and by which numbers


def claim_notes(table: ResultTable, partial: bool) -> Iterator[str]:
    """Yield for each claim whether it holds for our rows, or which rows have not run.

    Args:
        table: with its claims; those of a sample are not checked.
        partial: rows count as soon as two of their runs are finished.

    Raises:
        ResultsError: a claim names no check, or a row or column that the table has not.
    """
    for claim in () if table.sample else table.claims:
        where = f"{table.experiment}, {table.id}: claim"
        name = str(claim.get("check", ""))
        if name not in CHECKS:
            raise ResultsError(f"{where}: unknown check {name!r}.{suggest(name, CHECKS)}")
        words, check = CHECKS[name]
        rows = [claim[key] for key in ("row", "than") if key in claim] + list(claim.get("rows", ()))
        columns = list(claim.get("columns", table.columns))
        for key, allowed in (*((row, table.rows) for row in rows), *((column, table.columns) for column in columns)):
            if key not in allowed:
                raise ResultsError(f"{where}: {key!r} is not in the table.{suggest(key, allowed)}")
        compared = list(table.rows) if name == "rank" else rows
        scores, missing = _scores(table, compared, columns, partial)
        if missing:
            yield f"{words(claim, columns)}: not yet run ({', '.join(missing)})."
            continue
        holds, numbers = check(table, scores, claim)
        runs = sorted({len(values) for of_column in scores.values() for values in of_column.values()})
        count = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
        verdict = "holds" if holds else "does NOT hold"
        yield f"{words(claim, columns)}: {verdict} for our rows ({numbers}; {count} runs each)."


def _scores(table: ResultTable, rows: Sequence[str], columns: Sequence[str], partial: bool) -> tuple[Scores, list[str]]:
    """Return our scores, and the rows that lack runs; a row that is only quoted is in neither."""
    scores: Scores = {column: {} for column in columns}
    missing = dict[str, None]()
    for row in rows:
        for column in columns:
            ours = table.rows[row][column].ours
            if ours is None:
                continue
            if ours.shown(partial) and ours.n > 1 and all(map(math.isfinite, ours.values)):
                scores[column][row] = ours.values
            else:
                missing[row] = None
    return scores, list(missing)


def _rank(table: ResultTable, scores: Scores, claim: Any) -> Verdict:
    ranks = {}
    for column, values in scores.items():
        means = {row: sum(of_row) / len(of_row) for row, of_row in values.items()}
        best = means[claim["row"]]
        higher = table.columns[column]["better"] == "higher"
        ranks[column] = 1 + sum((mean > best) if higher else (mean < best) for mean in means.values())
    numbers = ", ".join(f"rank {rank} of {len(scores[column])} on {column}" for column, rank in ranks.items())
    return set(ranks.values()) == {claim["rank"]}, numbers


def _not_below(table: ResultTable, scores: Scores, claim: Any) -> Verdict:
    p_values = {}
    for column, values in scores.items():
        worse = "less" if table.columns[column]["better"] == "higher" else "greater"
        row, than = values[claim["row"]], values[claim["than"]]
        p_values[column] = float(scipy.stats.ttest_ind(row, than, equal_var=False, alternative=worse).pvalue)
    return _none_significant(p_values, "one-tailed Welch's t-test")


def _flat(_table: ResultTable, scores: Scores, _claim: Any) -> Verdict:
    p_values = {column: float(scipy.stats.f_oneway(*values.values()).pvalue) for column, values in scores.items()}
    return _none_significant(p_values, "one-way analysis of variance")


def _none_significant(p_values: dict[str, float], test: str) -> Verdict:
    numbers = ", ".join(f"p {p:.3g} on {column}" for column, p in p_values.items())
    return not any(p < LEVEL for p in p_values.values()), f"{test} at {LEVEL:.0%}: {numbers}"


def _rank_words(claim: Any, columns: Sequence[str]) -> str:
    return f"claim, {claim['row']} {ORDINALS[claim['rank'] - 1]} on {', '.join(columns)}"


def _not_below_words(claim: Any, columns: Sequence[str]) -> str:
    return f"claim, {claim['row']} not significantly worse than {claim['than']} on {', '.join(columns)}"


def _flat_words(claim: Any, columns: Sequence[str]) -> str:
    return f"claim, no difference between {', '.join(claim['rows'])} on {', '.join(columns)}"


CHECKS: dict[str, tuple[Callable[..., str], Callable[..., Verdict]]] = {
    "rank": (_rank_words, _rank),
    "not_below": (_not_below_words, _not_below),
    "flat": (_flat_words, _flat),
}
