"""Dataset statistics: counts data sets again, for the papers' tables of them (k-MIP paper, table 4; thesis, table A.1).

python run/dataset_table.py --datasets Cora Computer=Amazon-Computers --out cells.json [--dir datasets] [--sample]
    [--columns graphs nodes edges sparsity]

A data set without files on this machine is left out; processed files are stored next to the raw ones.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from graphgps_kmip.common.atomic_write import write_json
from graphgps_kmip.data import DatasetInfo, DatasetRecord, at_hand, find_title, mismatches, open_dataset, sampled
from graphgps_kmip.errors import ConfigError, InputError, report_mistakes

COLUMNS = ("graphs", "nodes", "edges", "outputs", "sparsity", "features")
DEFAULT_COLUMNS = COLUMNS[:4]


def count_dataset(record: DatasetRecord, root: Path, sample: bool) -> dict[str, list[float]]:
    """Return a row of the table: column -> its number (sparsity: mean edges over squared mean nodes)."""
    info = DatasetInfo.of(open_dataset(sampled(record) if sample else record, "" if sample else root), record)
    for line in () if sample else mismatches(record, info):
        print(f"warning: {line}")
    once = record.statistics is not None and record.statistics.edges_once and not info.directed
    edges = info.mean_edges / (2 if once else 1)
    numbers = (info.graphs, info.mean_nodes, edges, info.dim_out, edges / info.mean_nodes**2, info.dim_in)
    return {column: [number] for column, number in zip(COLUMNS, numbers, strict=True)}


def as_text(number: float) -> str:
    """Return a number with two decimals, below 0.01 with two digits."""
    return f"{number:.2g}" if 0 < number < 0.01 else f"{number:,.2f}".removesuffix(".00")


@report_mistakes
def main(argv: list[str]) -> int:
    """Write the rows of the data sets that are there; return the exit code, 2 if none is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", required=True, metavar="NAME", help="NAME, or ROW=NAME")
    parser.add_argument("--out", type=Path, required=True, help="JSON file: cells, row -> column -> values")
    parser.add_argument("--dir", type=Path, default=Path("datasets"), help="folder of all data sets (default datasets)")
    parser.add_argument("--columns", nargs="+", default=DEFAULT_COLUMNS, choices=COLUMNS, help="of the table")
    parser.add_argument("--sample", action="store_true", help="count small synthetic samples; needs no files")
    args = parser.parse_args(argv)
    cells = {}
    for text in args.datasets:
        row, _, name = text.rpartition("=")
        try:
            record = find_title(name)
        except InputError as error:
            raise ConfigError(str(error).replace("--data:", "--datasets:")) from None
        if not (args.sample or at_hand(record, args.dir)):
            print(f"{name}: left out, it has no files in {args.dir} (python main.py --data {name} says which)")
            continue
        counts = count_dataset(record, args.dir, args.sample)
        cells[row or name] = {column: counts[column] for column in args.columns}
        print(f"{name}: {', '.join(f'{column} {as_text(counts[column][0])}' for column in args.columns)}")
    if not cells:
        raise ConfigError(f"none of these data sets has files in {args.dir}: place some, or try --sample")
    write_json(args.out, {"cells": cells})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
