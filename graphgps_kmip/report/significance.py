"""Significance of a table's differences: mean ranks, Wilcoxon tests and bootstrap intervals, paired by seed or split.

J. Demšar, "Statistical comparisons of classifiers over multiple data sets", JMLR 7 (2006): ranks, and Wilcoxon's
signed-rank test, which assumes no normal differences. S. Holm, "A simple sequentially rejective multiple test
procedure" (1979), corrects for the number of tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from graphgps_kmip.report.result_table import ResultTable

LEVEL = 0.95
Scores = Mapping[str, Sequence[float]]  # row -> values of the same runs in the same order


@dataclass(frozen=True)
class Versus:
    """One row against the best one.

    Args:
        difference: mean of best - this, positive where the best is better.
        low: of the bootstrap interval of that mean.
        high: likewise.
        p: of the two-sided exact Wilcoxon test, corrected by Holm over all rows.
    """

    difference: float
    low: float
    high: float
    p: float


def mean_ranks(scores: Scores, better: str) -> dict[str, float]:
    """Return row -> rank, 1 the best, averaged over runs; equal scores share the mean of their ranks."""
    sign = -1 if better == "higher" else 1
    ranks = scipy.stats.rankdata([sign * np.asarray(values) for values in scores.values()], axis=0)
    return dict(zip(scores, ranks.mean(axis=1).tolist(), strict=True))


def against_best(scores: Scores, better: str) -> tuple[str, dict[str, Versus]]:
    """Return the row of the best mean, and how each other one compares with it, run by run.

    Args:
        scores: row -> at least two values, of the same runs in the same order.
        better: ``higher`` or ``lower``.
    """
    sign = 1 if better == "higher" else -1
    best = max(scores, key=lambda row: sign * float(np.mean(scores[row])))
    gaps = {row: sign * (np.asarray(scores[best]) - np.asarray(of)) for row, of in scores.items() if row != best}
    found = {row: _compared(gap) for row, gap in gaps.items()}
    corrected = holm({row: p for row, (_, _, p) in found.items()})
    return best, {
        row: Versus(float(gaps[row].mean()), low, high, corrected[row]) for row, (low, high, _) in found.items()
    }


def _compared(gap: np.ndarray) -> tuple[float, float, float]:
    if np.all(gap == gap[0]):  # no spread to draw from
        return float(gap[0]), float(gap[0]), 1.0 if gap[0] == 0 else smallest_p(len(gap))
    interval = scipy.stats.bootstrap(
        (gap,), np.mean, confidence_level=LEVEL, n_resamples=9999, method="percentile", random_state=0
    ).confidence_interval
    # All signs are tried, up to 13 runs: the usual tables and approximations do not hold for ties, which scores of few
    # test nodes have. Rounding makes equal gaps equal.
    p = scipy.stats.wilcoxon(gap.round(9), method=scipy.stats.PermutationMethod(rng=0)).pvalue
    return float(interval.low), float(interval.high), float(p)


def smallest_p(runs: int) -> float:
    """Return the smallest p that a two-sided Wilcoxon test of so many pairs can have."""
    return 2.0 ** (1 - runs)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p values corrected for their number by Holm's step-down procedure."""
    corrected, largest = {}, 0.0
    for place, row in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, p_values[row] * (len(p_values) - place)))
        corrected[row] = largest
    return corrected


def significance_notes(table: ResultTable) -> Iterator[str]:
    """Yield ranks and paired tests of a table of equally tuned models, of those whose runs in a column are complete."""
    for column, facts in table.columns.items() if table.searches and not table.sample else ():
        cells = {row: table.rows[row][column].ours for row in table.searches}
        scores = {row: one.values for row, one in cells.items() if one and one.complete and one.n > 1}
        runs = {cells[row].seeds for row in scores}
        finite = all(math.isfinite(value) for values in scores.values() for value in values)
        if column.endswith(" score") and len(scores) > 1 and len(runs) == 1 and finite:
            some = len(scores) < len(table.rows)
            name = f"{column}, the {len(scores)} models that are complete" if some else column
            yield from _notes(name, scores, facts["better"])


def rank_notes(tables: Sequence[ResultTable]) -> Iterator[str]:
    """Yield the mean ranks of equally tuned models over data sets (Demšar 2006), of those that all sets have.

    A set counts where at least two of its models are complete; a model counts where it is complete in all of these.
    """
    sets = {}
    for table in tables:
        for column, facts in table.columns.items() if table.searches and not table.sample else ():
            cells = {row: table.rows[row][column].ours for row in table.searches}
            means = {row: float(np.mean(one.values)) for row, one in cells.items() if one and one.complete}
            if column.endswith(" score") and len(means) > 1:
                sets[column.removesuffix(" score")] = means, -1 if facts["better"] == "higher" else 1
    first = next(iter(sets.values()))[0] if sets else {}
    shared = [row for row in first if all(row in means for means, _ in sets.values())]
    if len(sets) < 2 or len(shared) < 2:
        yield "ranks over data sets: at least two models must be complete on two data sets."
        return
    signed = {row: [sign * means[row] for means, sign in sets.values()] for row in shared}
    ranks = sorted(mean_ranks(signed, "lower").items(), key=lambda pair: pair[1])
    yield (
        f"mean rank over {', '.join(sets)}, of the models that all of them have: "
        f"{', '.join(f'{row} {rank:.1f}' for row, rank in ranks)}. So few data sets are no test of these ranks."
    )


def _notes(column: str, scores: Scores, better: str) -> Iterator[str]:
    runs = len(next(iter(scores.values())))
    ranks = sorted(mean_ranks(scores, better).items(), key=lambda pair: pair[1])
    yield f"{column}, mean rank over {runs} runs: {', '.join(f'{row} {rank:.1f}' for row, rank in ranks)}."
    best, others = against_best(scores, better)
    differences = "; ".join(
        f"{row} {one.difference:+.2f} [{one.low:+.2f}, {one.high:+.2f}], p {one.p:.3g}" for row, one in others.items()
    )
    yield (
        f"{column}, {best} minus each, paired by run: mean, {LEVEL:.0%} bootstrap interval, p of Wilcoxon's test after "
        f"Holm's correction: {differences}."
    )
    if smallest_p(runs) * len(others) > 1 - LEVEL:
        yield (
            f"{runs} runs are too few for these tests: the smallest p that they allow, before the correction, is "
            f"{smallest_p(runs):.3g}."
        )
