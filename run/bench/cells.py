"""Benchmark cells: turns records of `attention.py` into the cells of the papers' tables, for `run/reproduce.py`.

  python -m run.bench.cells --tables table10,table12 --records inference.json training.json --out FOLDER

Writes ``FOLDER/<table>.json``: ``{"cells": {row: {column: [ms of each pass] or "OOM" or "time limit"}}, "empty":
reasons for missing cells, "hardware": ...}``. Memory is in MiB, which the k-MIP paper prints as MB.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graphgps_kmip.common.atomic_write import write_json
from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import ConfigError, report_mistakes

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
# part of a status -> content of the cell; other cells without a number are empty
STATUS_CELLS = {"out of memory": "OOM", "time limit": "time limit", "estimated": "time limit"}
STAGES = ("search", "softmax", "gather", "backward", "total")
SEARCH_COLUMNS = {"time": "total", "recall": "recall", "memory": "memory"}


def _list_columns(method: str) -> dict[str, tuple[str, str, str]]:
    trained = {f"train_{what}": ("training", method, what) for what in ("forward", "backward", "total", "memory")}
    return {"inference_total": ("inference", method, "total")} | trained


def _list_flash_columns(setting: str) -> dict[str, tuple[str, str, str]]:
    pairs, kinds = {"kmip_fp32": SYMBOLIC, "flash_fp16": FLASH}, {"runtime": "total", "memory": "memory"}
    return {f"{a}_{b}": (setting, name, what) for a, name in pairs.items() for b, what in kinds.items()}


def _list_thesis_columns(setting: str, *quantities: str) -> dict[str, tuple[str, str, str]]:
    return {f"{name}, {what}": (setting, method, what) for name, method in NAMES.items() for what in quantities}


# tables with a row for each size; the two others are made by `_list_entries`
BY_SIZE = {
    "table10": _list_columns(SYMBOLIC),
    "table10-keops": _list_columns(KEOPS),
    "table11": _list_columns(NAIVE),
    "table12": _list_columns(FULL),
    "table15": _list_flash_columns("inference"),
    "table16": _list_flash_columns("training"),
    "figure6.1": _list_thesis_columns("inference", "total"),
    "figure6.2": _list_thesis_columns("training", "forward", "backward", "total"),
}
TABLES = (*BY_SIZE, "breakdown", "searches")


def _list_entries(table: str, rows: list[Row]) -> Iterator[tuple[str, str, str, Row | None, str]]:
    """Yield row and column of each cell, its method, the row of its record if there is one, and the quantity."""
    columns = BY_SIZE.get(table, {})
    settings = {setting for setting, _, _ in columns.values()} or {"search" if table == "searches" else table}
    for setting in settings:
        if not any(row["setting"] == setting for row in rows):
            raise ConfigError(f"--records: no record of the setting {setting}, which the table needs")
    rows = [row for row in rows if row["setting"] in settings]
    by_place = {(row["setting"], row["method"], row["n"]): row for row in rows}
    largest = max(row["n"] for row in rows)
    if table == "breakdown":
        for name, method in NAMES.items():
            yield from ((name, stage, method, by_place.get((table, method, largest)), stage) for stage in STAGES)
    elif table == "searches":
        for row in rows:
            name = f"{row['method']}, {size_name(row['n'])}"
            yield from ((name, column, row["method"], row, what) for column, what in SEARCH_COLUMNS.items())
    for n in sorted({row["n"] for row in rows}) if columns else ():
        for column, (setting, method, what) in columns.items():
            yield size_name(n), column, method, by_place.get((setting, method, n)), what


def size_name(n: int) -> str:
    """Return the papers' name of a size, a half power of ten: ``N=10^4.5``."""
    exponent = round(2 * math.log10(n)) / 2
    if n != round(10**exponent):
        raise ConfigError(f"--records: n = {n} is no half power of ten, as the sizes of the papers are")
    return f"N=10^{exponent:.1f}"


def _list_values(row: Row, what: str) -> list[float]:
    value = row.get({"memory": "memory_mib", "recall": "recall"}.get(what, f"{what}_ms"))
    return row.get(f"{what}_passes_ms", [] if value is None else [value])


def make_cells(table: str, records: list[Record]) -> dict[str, Any]:
    """Return the content of a table's file."""
    for record in records:
        options = {key: record["options"].get(key) for key in MEASURED}
        if options != MEASURED:
            raise ConfigError(f"--records: measured with {options}, the tables are of {MEASURED}")
    cells: dict[str, dict[str, list[float] | str]] = {}
    empty: dict[str, None] = {}
    rows = [row for record in records for row in record["rows"]]
    for name, column, method, row, what in _list_entries(table, rows):
        status = "ok" if row is None else row["status"]
        values = _list_values(row, what) if row and status == "ok" else []
        reason = next((reason for text, reason in STATUS_CELLS.items() if text in status), None)
        if values or reason:
            cells.setdefault(name, {})[column] = values or reason
        elif row is None:
            empty[f"{method} was not measured{' (it runs on cuda only)' * (method == FLASH)}"] = None
        else:
            empty[f"{method}: {f'no {what} was measured' if status == 'ok' else status}"] = None
    machine = records[-1]["machine"]
    hardware = {key: machine[key] for key in ("cpu", "cores", "device", "gpu", "threads") if key in machine}
    origin = {key: records[-1][key] for key in ("created", "code")}
    return {"cells": cells, "empty": list(empty), "memory_unit": "MiB", "hardware": hardware, **origin}


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    parser = bench_records.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", required=True, help=f"comma-separated: {', '.join(TABLES)}")
    parser.add_argument("--records", required=True, type=Path, nargs="+", metavar="FILE", help="of attention.py")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="where the files go")
    args = parser.parse_args(argv)
    args.tables = args.tables.split(",")
    for table in args.tables:
        if table not in TABLES:
            raise ConfigError(f"--tables: no table {table!r}.{suggest(table, TABLES)}")
    return args


@report_mistakes
def main(argv: list[str]) -> int:
    """Write the file of every table and print empty cells; return the exit code."""
    args = parse(argv)
    records = [bench_records.read(path) for path in args.records]
    contents = {table: make_cells(table, records) for table in args.tables}
    if not any(content["cells"] for content in contents.values()):
        reasons = dict.fromkeys(reason for content in contents.values() for reason in content["empty"])
        raise ConfigError(f"{', '.join(args.tables)}: no cell has a number; {'; '.join(reasons)}")
    for table, content in contents.items():
        write_json(args.out / f"{table}.json", content)
        print("\n  left empty: ".join([f"{args.out / table}.json", *content["empty"]]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
