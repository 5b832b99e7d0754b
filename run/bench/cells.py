"""Benchmark cells: turns records of `attention.py` into the cells of the papers' tables, for `run/reproduce.py`.

  python -m run.bench.cells --tables table10,table12 --records inference.json training.json --out FOLDER

Writes ``FOLDER/<table>.json`` for each table: ``{"cells": {row: {column: [values] or "OOM" or "time limit"}}, "empty":
why the others have no number, "hardware": ...}``. Times are those of each pass in ms. Memory is in MiB, which is what
the k-MIP paper prints as MB: 1831.06 at N = 10^6 are 480 float32 a node in MiB, and no whole number of them in 10^6
bytes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graphgps_kmip.common.atomic_write import write_json
from graphgps_kmip.common.near_misses import suggest

from . import bench_records
from .bench_records import Record, Row

# the paper's names -> our methods
NAMES = {
    "full attention": "full eager",
    "k-MIP, naive": "k-MIP naive (matmul+topk)",
    "k-MIP, symbolic": "k-MIP ours: auto",
    "k-MIP, KeOps": "k-MIP ours: keops",
}
FULL, NAIVE, SYMBOLIC, KEOPS = NAMES.values()
FLASH = "sdpa flash float16"
MEASURED = {"data": "gaussian", "dims": 10, "k": 10, "heads": 1}  # what all tables are of
# how a status reads -> what stands in the cell; whatever else has no number leaves it empty
WORDS = {"out of memory": "OOM", "time limit": "time limit", "estimated": "time limit"}
STAGES = ("search", "softmax", "gather", "backward", "total")
SEARCH_COLUMNS = {"time": "total", "recall": "recall", "memory": "memory"}


def _by_method(method: str) -> dict[str, tuple[str, str, str]]:
    """Tables 10 to 12 of the k-MIP paper: column -> setting, method, quantity."""
    trained = {f"train_{what}": ("training", method, what) for what in ("forward", "backward", "total", "memory")}
    return {"inference_total": ("inference", method, "total")} | trained


def _flash(setting: str) -> dict[str, tuple[str, str, str]]:
    pairs, kinds = {"kmip_fp32": SYMBOLIC, "flash_fp16": FLASH}, {"runtime": "total", "memory": "memory"}
    return {f"{a}_{b}": (setting, name, what) for a, name in pairs.items() for b, what in kinds.items()}


def _thesis(setting: str, *quantities: str) -> dict[str, tuple[str, str, str]]:
    return {f"{name}, {what}": (setting, ours, what) for name, ours in NAMES.items() for what in quantities}


# tables with a row for each size; the two others are made by `_entries`
BY_SIZE = {
    "table10": _by_method(SYMBOLIC),
    "table10-keops": _by_method(KEOPS),
    "table11": _by_method(NAIVE),
    "table12": _by_method(FULL),
    "table15": _flash("inference"),
    "table16": _flash("training"),
    "figure6.1": _thesis("inference", "total"),
    "figure6.2": _thesis("training", "forward", "backward", "total"),
}
TABLES = (*BY_SIZE, "breakdown", "searches")


def _entries(table: str, rows: list[Row]) -> Iterator[tuple[str, str, str, Row | None, str]]:
    """Yield row and column of each cell, its method, the row of its record if there is one, and the quantity."""
    columns = BY_SIZE.get(table, {})
    settings = {setting for setting, _, _ in columns.values()} or {"search" if table == "searches" else table}
    for setting in settings:
        if not any(row["setting"] == setting for row in rows):
            raise ValueError(f"--records: no record of the setting {setting}, which the table needs")
    rows = [row for row in rows if row["setting"] in settings]
    found = {(row["setting"], row["method"], row["n"]): row for row in rows}
    largest = max(row["n"] for row in rows)
    if table == "breakdown":
        for name, method in NAMES.items():
            yield from ((name, stage, method, found.get((table, method, largest)), stage) for stage in STAGES)
    elif table == "searches":
        for row in rows:
            name = f"{row['method']}, {size_name(row['n'])}"
            yield from ((name, column, row["method"], row, what) for column, what in SEARCH_COLUMNS.items())
    for n in sorted({row["n"] for row in rows}) if columns else ():
        for column, (setting, method, what) in columns.items():
            yield size_name(n), column, method, found.get((setting, method, n)), what


def size_name(n: int) -> str:
    """Return the papers' name of a size, ``N=10^4.5``.

    Raises:
        ValueError: it is none of their sizes, the half powers of ten.
    """
    exponent = round(2 * math.log10(n)) / 2
    if n != round(10**exponent):
        raise ValueError(f"--records: n = {n} is no half power of ten, as the sizes of the papers are")
    return f"N=10^{exponent:.1f}"


def _values(row: Row, what: str) -> list[float]:
    """Return each pass of a time, else one value; empty if there is none."""
    one = row.get({"memory": "memory_mib", "recall": "recall"}.get(what, f"{what}_ms"))
    return row.get(f"{what}_passes_ms", [] if one is None else [one])


def cells_of(table: str, records: list[Record]) -> dict[str, Any]:
    """Return the content of a table's file.

    Raises:
        ValueError: a record is of other data or sizes.
    """
    for record in records:
        given = {key: record["options"].get(key) for key in MEASURED}
        if given != MEASURED:
            raise ValueError(f"--records: measured with {given}, the tables are of {MEASURED}")
    cells: dict[str, dict[str, list[float] | str]] = {}
    empty: dict[str, None] = {}
    for row, column, method, found, what in _entries(table, [row for record in records for row in record["rows"]]):
        status = "ok" if found is None else found["status"]
        values = _values(found, what) if found and status == "ok" else []
        word = next((word for text, word in WORDS.items() if text in status), None)
        if values or word:
            cells.setdefault(row, {})[column] = values or word
        elif found is None:
            empty[f"{method} was not measured{' (it runs on cuda only)' * (method == FLASH)}"] = None
        else:
            empty[f"{method}: {f'no {what} was measured' if status == 'ok' else status}"] = None
    machine = records[-1]["machine"]
    hardware = {key: machine[key] for key in ("cpu", "cores", "device", "gpu", "threads") if key in machine}
    made = {"created": records[-1]["created"], "code": records[-1]["code"]}
    return {"cells": cells, "empty": list(empty), "memory_unit": "MiB", "hardware": hardware, **made}


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    parser = bench_records.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", required=True, help=f"comma-separated: {', '.join(TABLES)}")
    parser.add_argument("--records", required=True, type=Path, nargs="+", metavar="FILE", help="of attention.py")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="where the files go")
    args = parser.parse_args(words)
    args.tables = args.tables.split(",")
    for table in args.tables:
        if table not in TABLES:
            raise ValueError(f"--tables: no table {table!r}.{suggest(table, TABLES)}")
    return args


def main(words: list[str]) -> int:
    """Write the file of every table and say what is empty; return the exit code."""
    args = parse(words)
    records = [bench_records.read(path) for path in args.records]
    contents = {table: cells_of(table, records) for table in args.tables}
    if not any(content["cells"] for content in contents.values()):
        reasons = dict.fromkeys(reason for content in contents.values() for reason in content["empty"])
        raise ValueError(f"{', '.join(args.tables)}: no cell has a number; {'; '.join(reasons)}")
    for table, content in contents.items():
        write_json(args.out / f"{table}.json", content)
        print("\n  left empty: ".join([f"{args.out / table}.json", *content["empty"]]))
    return 0


if __name__ == "__main__":
    bench_records.run(main)
