"""Turns records of `attention.py` into the cells of the papers' tables, for `run/reproduce.py`.

  python run/bench/cells.py --tables table10,table12 --records inference.json training.json --out FOLDER

Writes ``FOLDER/<table>.json`` for each table: ``{"cells": {row: {column: [values] or "OOM" or "time limit"}}, "empty":
why the others have no number, "hardware": ...}``. Times are the turns in ms. Memory is in MiB, which is what the k-MIP
paper prints as MB: 1831.06 at N = 10^6 are 480 float32 a node in MiB, and no whole number of them in 10^6 bytes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

if not __package__:  # a script finds its own folder there, where `attention` would be a name that anyone can import
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from graphgps_kmip.common.atomic_write import replace_file  # noqa: E402
from graphgps_kmip.common.near_misses import suggest  # noqa: E402
from run.bench import options  # noqa: E402
from run.bench.bench_records import Record, Row, read  # noqa: E402

# the paper's contestants -> ours
SYMBOLIC, KEOPS, NAIVE, FULL, FLASH = (
    "k-MIP ours: auto", "k-MIP ours: keops", "k-MIP naive (matmul+topk)", "full eager", "sdpa flash float16",
)  # fmt: skip
NAMES = {"full attention": FULL, "k-MIP, naive": NAIVE, "k-MIP, symbolic": SYMBOLIC, "k-MIP, KeOps": KEOPS}
MEASURED = {"data": "gaussian", "dims": 10, "k": 10, "heads": 1}  # what all tables are of
# how a status reads -> what stands in the cell; whatever else has no number leaves it empty
WORDS = {"out of memory": "OOM", "time limit": "time limit", "estimated": "time limit"}
STAGES = ("search", "softmax", "gather", "backward", "total")

Rows = list[Row]
# row and column of a cell, its contestant, the row of its record (None: not measured), and what is taken from that
Entry = tuple[str, str, str, Row | None, str]
Filler = Callable[[Rows], Iterator[Entry]]


def measured(rows: Rows, setting: str) -> Rows:
    """Return the rows of a setting.

    Raises:
        ValueError: there are none.
    """
    if found := [row for row in rows if row["setting"] == setting]:
        return found
    raise ValueError(f"--records: no record of the setting {setting}, which the table needs")


def by_size(columns: Mapping[str, tuple[str, str, str]]) -> Filler:
    """Return the filler of a table with a row for each size; column -> setting, contestant, quantity."""

    def fill(rows: Rows) -> Iterator[Entry]:
        settings = {setting for setting, _, _ in columns.values()}
        found = {(name, row["contestant"], row["n"]): row for name in settings for row in measured(rows, name)}
        for n in sorted({row["n"] for row in rows}):
            for column, (setting, contestant, what) in columns.items():
                yield size_name(n), column, contestant, found.get((setting, contestant, n)), what

    return fill


def attention_columns(contestant: str) -> dict[str, tuple[str, str, str]]:
    """Return the columns of the k-MIP paper's tables 10 to 12."""
    trained = {what: ("training", contestant, what) for what in ("forward", "backward", "total", "memory")}
    return {"inference_total": ("inference", contestant, "total")} | {f"train_{k}": v for k, v in trained.items()}


def flash_columns(setting: str) -> dict[str, tuple[str, str, str]]:
    """Return the columns of its tables 15 and 16."""
    pairs = {"kmip_fp32": SYMBOLIC, "flash_fp16": FLASH}
    kinds = {"runtime": "total", "memory": "memory"}
    return {f"{a}_{b}": (setting, name, what) for a, name in pairs.items() for b, what in kinds.items()}


def thesis_columns(setting: str, *quantities: str) -> dict[str, tuple[str, str, str]]:
    """Return the columns of a table of the thesis' figures 6.1 and 6.2: each contestant, each quantity."""
    return {f"{name}, {what}": (setting, ours, what) for name, ours in NAMES.items() for what in quantities}


def breakdown(rows: Rows) -> Iterator[Entry]:
    """A row for each contestant at the largest size, a column for each stage."""
    rows = measured(rows, "breakdown")
    last = max(row["n"] for row in rows)
    found = {row["contestant"]: row for row in rows if row["n"] == last}
    for name, contestant in NAMES.items():
        yield from ((name, stage, contestant, found.get(contestant), stage) for stage in STAGES)


def searches(rows: Rows) -> Iterator[Entry]:
    """A row for each search and size: its time, the share of true keys that it finds, its memory."""
    for row in measured(rows, "search"):
        name = f"{row['contestant']}, {size_name(row['n'])}"
        yield from ((name, column, row["contestant"], row, what) for column, what in SEARCH_COLUMNS.items())


SEARCH_COLUMNS = {"time": "total", "recall": "recall", "memory": "memory"}
TABLES: dict[str, Filler] = {
    "table10": by_size(attention_columns(SYMBOLIC)),
    "table10-keops": by_size(attention_columns(KEOPS)),
    "table11": by_size(attention_columns(NAIVE)),
    "table12": by_size(attention_columns(FULL)),
    "table15": by_size(flash_columns("inference")),
    "table16": by_size(flash_columns("training")),
    "figure6.1": by_size(thesis_columns("inference", "total")),
    "figure6.2": by_size(thesis_columns("training", "forward", "backward", "total")),
    "breakdown": breakdown,
    "searches": searches,
}


def size_name(n: int) -> str:
    """Return the papers' name of a size, ``N=10^4.5``.

    Raises:
        ValueError: it is none of their sizes, the half powers of ten.
    """
    exponent = round(2 * math.log10(n)) / 2
    if n != round(10**exponent):
        raise ValueError(f"--records: n = {n} is no half power of ten, as the sizes of the papers are")
    return f"N=10^{exponent:.1f}"


def values_of(row: Row, what: str) -> list[float]:
    """Return what a row holds of a quantity: every turn of a time, else one value; empty if there is none."""
    if what in ("memory", "recall"):
        value = row.get({"memory": "memory_mib"}.get(what, what))
        return [] if value is None else [value]
    median = [row[f"{what}_ms"]] if f"{what}_ms" in row else []
    return row.get(f"{what}_turns_ms", median)


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
    for row, column, contestant, found, what in TABLES[table]([row for record in records for row in record["rows"]]):
        values = values_of(found, what) if found and found["status"] == "ok" else []
        reason = "" if values else why(contestant, found, what)
        word = next((word for text, word in WORDS.items() if text in reason), None)
        if values or word:
            cells.setdefault(row, {})[column] = values or word
        else:
            empty[reason] = None
    machine = records[-1]["machine"]
    hardware = {key: machine[key] for key in ("cpu", "cores", "device", "gpu", "threads") if key in machine}
    made = {"created": records[-1]["created"], "code": records[-1]["code"]}
    return {"cells": cells, "empty": list(empty), "memory_unit": "MiB", "hardware": hardware, **made}


def why(contestant: str, found: Row | None, what: str) -> str:
    """Say why a cell has no number."""
    if found is None:
        return f"{contestant} was not measured" + (" (it runs on cuda only)" if contestant == FLASH else "")
    return f"{contestant}: {found['status'] if found['status'] != 'ok' else f'no {what} was measured'}"


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    parser = options.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    records = [read(path) for path in args.records]
    args.out.mkdir(parents=True, exist_ok=True)
    contents = {table: cells_of(table, records) for table in args.tables}
    if not any(content["cells"] for content in contents.values()):
        reasons = dict.fromkeys(reason for content in contents.values() for reason in content["empty"])
        raise ValueError(f"{', '.join(args.tables)}: no cell has a number; {'; '.join(reasons)}")
    for table, content in contents.items():
        replace_file(args.out / f"{table}.json", (json.dumps(content, indent=1) + "\n").encode())
        print("\n  left empty: ".join([f"{args.out / table}.json", *content["empty"]]))
    return 0


if __name__ == "__main__":
    options.run(main)
