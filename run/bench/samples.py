"""Offline samples: does the planted long-range signal tell GPS with k-MIP attention from a 2-layer GCN?

  python run/bench/samples.py
  python run/bench/samples.py --only 'PascalVOC*,Cora' --seconds 20 --seeds 0,1,2

For each data set its sample is drawn and two models are trained on it, in CPU seconds of one thread, with the same
encoder of the schema, width, linear head and optimiser: a 2-layer GCN, and 3 layers of GatedGCN + k-MIP attention.
Printed is the test metric of the epoch that was best in validation, in percent (errors as they are). Training ends
early once validation is perfect. Nothing here says how a model does on the real data.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

# Not the folder of this file, which Python puts there: `attention` would then be a name that anyone can import.
sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch  # noqa: E402

from graphgps_kmip.common.atomic_write import replace_file  # noqa: E402
from graphgps_kmip.data import DatasetRecord, datasets  # noqa: E402
from graphgps_kmip.data.synthetic_sample import make_sample  # noqa: E402
from graphgps_kmip.registry import entries  # noqa: E402
from graphgps_kmip.train.run_recording import code_version, hardware, package_versions  # noqa: E402
from run.bench import options  # noqa: E402
from run.bench.duel import MODELS, train  # noqa: E402

Row = dict[str, Any]


def compare(record: DatasetRecord, seed: int, seconds: float, epochs: float = math.inf) -> Row:
    """Return the row of one data set and seed; ``status`` says why there is no result."""
    row: Row = {"data": record.title, "key": record.key, "level": record.level, "seed": seed}
    try:
        start = time.perf_counter()
        dataset = record.sample(record, seed) if record.sample else make_sample(record, seed)
        row["build_s"] = time.perf_counter() - start
        found = {kind: train(kind, record, dataset, seed, seconds, epochs) for kind in MODELS}
    except ValueError as error:
        return row | {"status": f"not compared: {error}"}
    gain = found["gps"]["test"] - found["gcn"]["test"]
    gain = gain if entries("metric")[found["gps"]["metric"]].traits.maximize else -gain
    flat = {f"{kind}_{name}": value for kind, one in found.items() for name, value in one.items() if name != "metric"}
    return row | {"status": "ok", "metric": found["gps"]["metric"], "gain": gain} | flat


def line(row: Row) -> str:
    """Return the printed line of a row."""
    name = f"{row['data']:<32}{row['level']:<15}{row['seed']:>4}  "
    if row["status"] != "ok":
        return name + row["status"]
    scale = 100 if entries("metric")[row["metric"]].traits.maximize else 1
    values = "".join(f"{scale * row[key]:>9.2f}" for key in ("gcn_test", "gps_test", "gain"))
    times = "".join(f"{row[key]:>9.1f}" for key in ("gcn_seconds", "gps_seconds", "gps_best_s"))
    return f"{name}{row['metric']:<13}{values}{times}"


HEADER = f"{'data':<32}{'level':<15}seed  {'metric':<13}" + "".join(
    f"{word:>9}" for word in ("GCN", "GPS+kMIP", "gain", "GCN s", "GPS s", "best at")
)


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line.

    Raises:
        ValueError: a pattern that matches no data set, or seconds that are not positive.
    """
    parser = options.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", metavar="NAMES", default="*", help="comma-separated patterns of titles or format/name (default all)")
    add("--seconds", type=float, default=30, help="CPU seconds that a model may train (default 30)")
    add("--seeds", default="0", help="comma-separated seeds of sample and model (default 0)")
    add("--out", type=Path, default=options.RESULTS, metavar="FOLDER", help="where to write (default results/bench)")
    args = parser.parse_args(words)
    if not args.seconds > 0:
        raise ValueError(f"--seconds must be positive, got {args.seconds:g}")
    args.seeds = [int(seed) for seed in args.seeds.split(",")]
    return args


def pick(patterns: str) -> list[DatasetRecord]:
    """Return the registered data sets that match a pattern.

    Raises:
        ValueError: a pattern matches none.
    """
    records = {}
    for pattern in patterns.split(","):
        found = [one for one in datasets().values() if any(fnmatch.fnmatch(n, pattern) for n in (one.title, one.key))]
        if not found:
            raise ValueError(f"--only {pattern}: no data set of this name")
        records |= {record.key: record for record in found}
    return list(records.values())


def main(words: list[str]) -> int:
    """Train, print, write; return the exit code."""
    args = parse(words)
    torch.set_num_threads(1)
    print(HEADER, flush=True)
    rows = []
    for record in pick(args.only):
        for seed in args.seeds:
            rows.append(compare(record, seed, args.seconds))
            print(line(rows[-1]), flush=True)
    now = datetime.now().astimezone()
    machine = hardware(torch.device("cpu")) | {"threads": 1, "packages": package_versions()}
    chosen = {key: value for key, value in vars(args).items() if key != "out"}
    result = {"bench": "samples", "created": now.isoformat(timespec="seconds"), "code": code_version()}
    result |= {"options": chosen, "machine": machine, "rows": rows}
    path = args.out / f"samples-{now:%Y%m%d-%H%M%S}-cpu-1threads-{result['code']}.json"
    args.out.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(result, indent=1) + "\n").encode())
    print(f"\n{path}")
    return 0


if __name__ == "__main__":
    options.run(main)
