"""Runs the cells of one benchmark, each in a process of its own, and returns their rows.

All contestants of one size take turns: load that others put on the machine then hits all of them alike, where
contestants measured one after the other would each meet another machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from run.bench.harness import Bounds, Row, Turns, repeats_for, start_server

STEEPEST = 2.0  # exponent of the growth in N: no contestant is worse than quadratic


def measure(
    cells: list[list[Row]],
    bounds: Bounds,
    environment: Callable[[Row], Mapping[str, str]],
    report: Callable[[list[Row]], None],
) -> list[Row]:
    """Measure cells and return their rows in order.

    Args:
        cells: for each size, smallest first, what `worker.py` is told about each contestant.
        bounds: repeats and time limit of a cell.
        environment: variables for a cell's process.
        report: called with the rows of each size when they are there.
    """
    rows: list[Row] = []
    start_server(cells[0][0]["threads"])
    for of_one_size in cells:
        done = _measure_together(of_one_size, rows, bounds, environment)
        report(done)
        rows += done
    return rows


def _measure_together(
    cells: list[Row], earlier: list[Row], bounds: Bounds, environment: Callable[[Row], Mapping[str, str]]
) -> list[Row]:
    turns = []
    try:
        for cell in cells:
            reason = skip_reason(cell, earlier, bounds)
            turns.append(Turns(cell, bounds, reason, {} if reason else environment(cell)))
        while any(turn.goes_on for turn in turns):
            for turn in turns:
                turn.once()
    finally:
        for turn in turns:
            turn.end()
    return [turn.row() for turn in turns]


def skip_reason(cell: Row, earlier: list[Row], bounds: Bounds) -> str | None:
    """Say why a cell is not started: it failed at a smaller size, or would take longer than the limit."""
    same = [row for row in earlier if (row["contestant"], row["data"]) == (cell["contestant"], cell["data"])]
    if not same:
        return None
    last = same[-1]
    if last["status"].startswith(("out of memory", "time limit", "skipped")):
        what = last["status"].partition(" (")[0]
        return last["status"] if what == "skipped" else f"skipped ({what} at n = {last['n']})"
    known = [(row["n"], row["total_ms"] / 1000) for row in same if row["status"] == "ok"][-2:]
    if not known:
        return None
    slope = STEEPEST
    if len(known) == 2:
        slope = math.log(known[1][1] / known[0][1]) / math.log(known[1][0] / known[0][0])
        slope = min(STEEPEST, max(1.0, slope))
    one = known[-1][1] * (cell["n"] / known[-1][0]) ** slope
    whole = one * (1 + repeats_for(one, bounds))
    return f"skipped (estimated {whole:.0f} s)" if whole > bounds.limit else None
