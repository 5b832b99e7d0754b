"""Table of BREC: how many pairs finished runs of train.mode brec tell apart, by category (PPGT paper, tables 1 and 9).

python run/brec.py --rows PPGT=results/BREC/ppgt/0 --wl results/expressivity/brec_wl.json --out cells.json

A run that has tested a category in part leaves its column out; "unreliable" counts pairs that fail that test.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from graphgps_kmip.common.atomic_write import read_artefact, write_json
from graphgps_kmip.data.sets.brec import CATEGORIES
from graphgps_kmip.errors import ResultsError, report_mistakes
from graphgps_kmip.expressivity.brec_protocol import TOTAL, CategoryRow, category_rows, read_results, table_text
from graphgps_kmip.results.run_record import read_record

FILE = "brec.jsonl"
NAMES = {"basic": "Basic", "regular": "Regular", "extension": "Extension", "cfi": "CFI", TOTAL: "Total"}
SHARE, UNRELIABLE = "BREC", "unreliable"
PRINTED = (*NAMES.values(), SHARE)
Cells = dict[str, list[float]]


def make_row(rows: Sequence[CategoryRow], sample: bool = False) -> Cells:
    """Return the cells of a row, column -> its number, for categories that are tested completely (sample: in part)."""
    whole = [row for row in rows if (row.tested > 0 if sample else row.tested == row.pairs)]
    cells: Cells = {NAMES[row.category]: [row.distinguished] for row in whole}
    if rows[-1] in whole:
        cells[SHARE] = [100 * rows[-1].distinguished / rows[-1].tested]
    return cells | {UNRELIABLE: [rows[-1].unreliable]} if whole else {}


def count_run(folder: Path, sample: bool) -> list[CategoryRow]:
    """Return the counts of a finished run, which must be a sample or not."""
    record = read_record(folder) or {}
    if not record.get("finished"):
        raise ResultsError(f"{folder} holds no finished run: run train.mode brec there first")
    if bool(record.get("sample")) != sample:
        content = "a result: leave --sample out" if sample else "a sample: give --sample"
        raise ResultsError(f"{folder} holds {content}, or name another folder")
    return category_rows(read_results(folder / FILE)[1], CATEGORIES)


def count_colours(path: Path, sample: bool) -> dict[str, list[CategoryRow]]:
    """Return the counts of each colour refinement in a file of ``run/expressivity.py brec``, by its name."""
    content = read_artefact(path)
    if bool(content.get("sample")) != sample:
        raise ResultsError(f"{path} holds {'a sample' if not sample else 'a result'}: name another file")
    return {
        name: category_rows(
            {int(pair): {"distinguished": after is not None} for pair, after in test["separated_after"].items()},
            CATEGORIES,
        )
        for name, test in content["tests"].items()
    }


@report_mistakes
def main(argv: list[str]) -> int:
    """Write the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=[], metavar="NAME=FOLDER", help="rows, and the runs' folders")
    parser.add_argument("--wl", type=Path, help="rows 1-WL and 3-WL: file brec_wl.json of run/expressivity.py brec")
    parser.add_argument("--out", type=Path, required=True, help="JSON file: cells, row -> column -> values")
    columns = [*PRINTED, UNRELIABLE]
    parser.add_argument("--columns", nargs="+", choices=columns, default=list(PRINTED), help="columns of the table")
    parser.add_argument("--sample", action="store_true", help="the runs are on sample data")
    args = parser.parse_args(argv)
    if wrong := [row for row in args.rows if "=" not in row.strip("=")]:
        parser.error(f"--rows: expected NAME=FOLDER, got {wrong[0]!r}")
    counted = count_colours(args.wl, args.sample) if args.wl else {}
    for row in args.rows:
        name, _, folder = row.rpartition("=")  # S=3=folder
        counted[name] = count_run(Path(folder), args.sample)
    cells = {}
    for name, rows in counted.items():
        print(f"{'SAMPLE, made-up pairs: ' if args.sample else ''}{name}\n{table_text(rows)}\n")
        cells[name] = {column: cell for column, cell in make_row(rows, args.sample).items() if column in args.columns}
    write_json(args.out, {"cells": cells})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
