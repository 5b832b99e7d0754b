"""Dataset statistics: counts data sets again, for the papers' tables of them (k-MIP paper, table 4; thesis, table A.1).

python run/dataset_table.py --datasets Cora Computer=Amazon-Computers --out cells.json [--dir datasets] [--sample]
    [--columns graphs nodes edges sparsity]

A data set without files on this machine is left out; nothing is downloaded. What is made of raw files is stored beside
them, as in every run: name a folder that may be written to.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from graphgps_kmip.common.atomic_write import write_json
from graphgps_kmip.data import DatasetInfo, DatasetRecord, at_hand, find_title, mismatches, open_dataset, sampled

COLUMNS = ("graphs", "nodes", "edges", "outputs", "sparsity", "features")
DEFAULT_COLUMNS = COLUMNS[:4]


def counted(record: DatasetRecord, root: Path, sample: bool) -> dict[str, list[float]]:
    """Return a row of the table: column -> the one number found; edges as the data set's publication counts them.

    ``sparsity`` is mean edges over squared mean nodes, ``features`` columns of the nodes' features.
    """
    info = DatasetInfo.of(open_dataset(sampled(record) if sample else record, "" if sample else root), record)
    for line in () if sample else mismatches(record, info):
        print(f"warning: {line}")
    once = record.statistics is not None and record.statistics.edges_once and not info.directed
    edges = info.mean_edges / (2 if once else 1)
    found = (info.graphs, info.mean_nodes, edges, info.dim_out, edges / info.mean_nodes**2, info.dim_in)
    return {column: [number] for column, number in zip(COLUMNS, found, strict=True)}


def as_text(number: float) -> str:
    """Return a number for a line: two digits behind the point, of one below 0.01 two digits."""
    return f"{number:.2g}" if 0 < number < 0.01 else f"{number:,.2f}".removesuffix(".00")


def main(words: list[str]) -> int:
    """Write the rows of the data sets that are there; return the exit code, 2 if none is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", required=True, metavar="NAME", help="NAME, or ROW=NAME")
    parser.add_argument("--out", type=Path, required=True, help="JSON file: cells, row -> column -> values")
    parser.add_argument("--dir", type=Path, default=Path("datasets"), help="folder of all data sets (default datasets)")
    parser.add_argument("--columns", nargs="+", default=DEFAULT_COLUMNS, choices=COLUMNS, help="of the table")
    parser.add_argument("--sample", action="store_true", help="count small synthetic samples; needs no files")
    args = parser.parse_args(words)
    cells = {}
    try:
        for word in args.datasets:
            row, _, name = word.rpartition("=")
            record = find_title(name)
            if not (args.sample or at_hand(record, args.dir)):
                print(f"{name}: left out, it has no files in {args.dir} (python main.py --data {name} says which)")
                continue
            found = counted(record, args.dir, args.sample)
            found = cells[row or name] = {column: found[column] for column in args.columns}
            sizes = (f"{column} {as_text(value)}" for column, (value,) in found.items())
            print(f"{name}: {', '.join(sizes)}")
        if not cells:
            raise ValueError(f"none of these data sets has files in {args.dir}: place some, or try --sample")
        write_json(args.out, {"cells": cells})
    except ValueError as error:
        print(f"error: {' '.join(str(error).split()).replace('--data:', '--datasets:')}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
