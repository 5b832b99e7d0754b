"""Tuning behind a result table: trials, cost and choice of each model's search, and the ranges that all share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphgps_kmip.common.durations import duration
from graphgps_kmip.experiments.search_record import SearchRecord

Searches = Mapping[str, SearchRecord]


def tuning_notes(searches: Searches) -> Iterator[str]:
    """Yield the notes of a table of equally tuned models: equal or not, the shared ranges, a line for each model.

    Args:
        searches: row -> record of the search that chose its settings.
    """
    if not searches:
        return
    counts = {row: one.trials for row, one in searches.items()}
    equal = len(set(counts.values())) == 1
    trials = f"{next(iter(counts.values()))} trials each" if equal else f"NOT EQUAL, trials: {_listed(counts)}"
    failed = sum(one.failed for one in searches.values())
    seeds = ", ".join(sorted({str(one.seed) for one in searches.values()}))
    yield (
        f"tuning: {trials}, chosen on validation alone, with seed {seeds}, which no number here is of; all together "
        f"{sum(counts.values())} trials ({failed} failed) in {duration(sum(one.seconds for one in searches.values()))}."
    )
    if published := [row for row, one in searches.items() if one.published]:
        yield f"not searched here, but with published choices (run/experiments/published): {', '.join(published)}."
    shared = shared_ranges(searches)
    yield f"ranges of all models: {_listed({name: _values(values) for name, values in shared.items()})}."
    for row, one in searches.items():
        own = {name: _values(values) for name, (_, values) in one.ranges.items() if name not in shared}
        choice = ", ".join(f"{name} {value}" for name, value in one.choice.items())
        extra = f"; own ranges: {_listed(own)}" if own else ""
        lost = f", {one.failed} failed" if one.failed else ""
        yield (
            f"{row}: {choice} (validation {one.metric} {one.value:.4g}, best of {one.trials} trials{lost}, "
            f"{duration(one.seconds)}{extra})."
        )


def shared_ranges(searches: Searches) -> dict[str, list[str]]:
    """Return the factors that every search has with the same values, and these."""
    first, *others = (one.ranges for one in searches.values())
    return {
        name: values
        for name, (_, values) in first.items()
        if all(name in other and list(other[name][1]) == list(values) for other in others)
    }


def _values(values: list[str]) -> str:
    return "/".join(values)


def _listed(words: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {word}" for name, word in words.items())
