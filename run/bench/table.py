"""A record as a printed table, size by size."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from run.bench.bench_records import Record, Row
from run.bench.paper import numbers

BUSY = 0.25  # load by others for each core from which on times are theirs too
# heading -> column; a column without any value is left out
SHOWN = {
    "median ms": "total_ms",
    "min": "total_min_ms",
    "max": "total_max_ms",
    "turns": "repeats",
    "forward": "forward_ms",
    "search": "search_ms",
    "softmax": "softmax_ms",
    "gather": "gather_ms",
    "backward": "backward_ms",
    "nodes/s": "nodes_per_s",
    "MiB": "memory_mib",
    "x frozen": "vs_frozen",
    "of sgemm": "sgemm_share",
    "recall": "recall",
    "seen": "pairs_seen",
    "paper ms": "paper_ms",
    "paper MB": "paper_mb",
}


def table(record: Record) -> str:
    """Return the table: for each data set and size, one line for each contestant."""
    return "\n".join([header(record), *lines(record["rows"])])


def header(record: Record) -> str:
    """Say what was measured on which machine."""
    options, machine = record["options"], record["machine"]
    setting = "" if options["setting"] == record["bench"] else f"{options['setting']}, "
    what = f"{record['bench']}, {setting}d = {options['dims']}, k = {options['k']}, {record['code']}"
    where = f"{machine.get('gpu', machine['cpu'])}, {machine['threads']} thread{'s' * (machine['threads'] > 1)}"
    busy = machine.get("load") or 0.0
    where += (
        f", busy with others (load {busy:.1f}): do not trust absolute times" if busy > BUSY * machine["cores"] else ""
    )
    rates = f"sgemm {machine['sgemm_gflops']:g} GFLOP/s, copy {machine['stream_gb_per_s']:g} GB/s"
    paper = f"; paper: {numbers()['hardware']}" if any("paper_ms" in row for row in record["rows"]) else ""
    return f"{what}\n{where}; {rates}{paper}"


def lines(rows: list[Row]) -> list[str]:
    """Return the lines of some rows; those without a result say why."""
    shown = {head: key for head, key in SHOWN.items() if any(row.get(key) is not None for row in rows)}
    width = max(len(row["contestant"]) for row in rows) + 2
    result = []
    for (data, n), group in groupby(rows, key=lambda row: (row["data"], row["n"])):
        result += ["", f"{f'n = {n}, {data}':<{width}}" + "".join(f"{head:>11}" for head in shown)]
        for row in group:
            cells = "".join(f"{number(row.get(key)):>11}" for key in shown.values())
            result.append(f"{row['contestant']:<{width}}" + (cells if row["status"] == "ok" else f"   {row['status']}"))
    return result


def number(value: Any) -> str:
    """Print a number in three to four digits, and nothing for None."""
    if value is None or isinstance(value, str | int):
        return "" if value is None else str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
