"""The ball tree and the curse of dimensionality: the thesis' section 6.3, figures 6.3 (nodes) and 6.4 (time).

  python run/bench/tree.py
  python run/bench/tree.py --quick
  python run/bench/tree.py --part time --backends ball_tree,keops,exact

nodes: mean number of tree nodes that a query visits, over N, leaf size 1, for 1 to 15 dimensions; 5 repeats.
time: building and searching with all N queries, leaf size 100, in 3 and 10 dimensions; 6 repeats, the first dropped;
beside it other exact backends, all on the CPU (the thesis ran its brute force on a GPU). Keys and queries from N(0, I),
k = 10, N = 100 sqrt(10)^i for i = 0..6. The curves a N^b and a N log N are fitted to logarithms (R2 is theirs; times
from N = 1000), a log N + b to the numbers of nodes.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

# Not the folder of this file, which Python puts there: `attention` would then be a name that anyone can import.
sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from graphgps_kmip.common.atomic_write import replace_file  # noqa: E402
from graphgps_kmip.registry import entries  # noqa: E402
from graphgps_kmip.report.figures import ball_tree  # noqa: E402
from graphgps_kmip.search import SearchProblem  # noqa: E402
from graphgps_kmip.search.ball_tree import BallTree  # noqa: E402
from graphgps_kmip.train.run_recording import code_version, hardware, package_versions  # noqa: E402
from run.bench import options  # noqa: E402

Row = dict[str, Any]

NUM_KEYS = 10
SIZES = [round(100 * 10 ** (i / 2)) for i in range(7)]
DIMS = {"nodes": (1, 2, 3, 4, 5, 10, 15), "time": (3, 10)}
REPEATS = {"nodes": 5, "time": 6}
LEAF_SIZE = {"nodes": 1, "time": 100}
QUICK = {"sizes": SIZES[:5], "queries": 300, "repeats": {"nodes": 2, "time": 3}}
COLUMNS = (
    "part contestant dim n k leaf_size queries repeats visited visited_std seconds seconds_min seconds_max".split()
)


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line.

    Raises:
        ValueError: a backend that does not exist, or a limit that is not positive.
    """
    parser = options.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--part", choices=("nodes", "time", "both"), default="both", help="what to measure (default both)")
    add("--quick", action="store_true", help="N up to 10^4, fewer repeats and queries: under a minute")
    add("--backends", metavar="NAMES", default="ball_tree,tree,cpu,chunked", help="time: which (default %(default)s)")
    add("--queries", type=options.positive, default=2000, help="nodes: most queries of a repeat (default 2000)")
    add("--limit", type=float, default=60, help="time: who takes longer for a pass sits out larger N (default 60 s)")
    add("--threads", type=options.positive, default=torch.get_num_threads(), help="CPU threads (default %(default)s)")
    add("--out", type=Path, default=options.RESULTS, metavar="FOLDER", help="where to write (default results/bench)")
    add("--name", default="", metavar="NAME", help="of the files (default: when and with what code they were made)")
    args = parser.parse_args(words)
    if not args.limit > 0:
        raise ValueError(f"--limit must be positive, got {args.limit:g}")
    args.sizes, args.repeats = (QUICK["sizes"], QUICK["repeats"]) if args.quick else (SIZES, REPEATS)
    args.queries = min(args.queries, QUICK["queries"]) if args.quick else args.queries
    args.backends = backends(args.backends)
    return args


def backends(given: str) -> list[str]:
    """Return the names of the backends to time."""
    names = given.split(",")
    missing = [name for name in names if name not in entries("search_backend")]
    if missing:
        raise ValueError(f"--backends {', '.join(missing)}: there are {', '.join(entries('search_backend'))}")
    return names


def count_nodes(args: argparse.Namespace) -> list[Row]:
    """Count the visited nodes for each dimension and size."""
    rows = []
    for dim in DIMS["nodes"]:
        for n in args.sizes:
            means = []
            for repeat in range(args.repeats["nodes"]):
                q, k = gaussian(dim, n, repeat)
                visited = BallTree(k, LEAF_SIZE["nodes"], seed=repeat).search(q[: args.queries], NUM_KEYS)[2]
                means.append(visited.double().mean().item())
            row = {"part": "nodes", "contestant": "ball_tree", "dim": dim, "n": n, "k": NUM_KEYS, "leaf_size": 1}
            row |= {"queries": min(n, args.queries), "repeats": len(means), "visited": statistics.mean(means)}
            rows.append(row | {"visited_std": statistics.stdev(means)})
        print_table(rows[-len(args.sizes) :], "visited", f"nodes visited, d = {dim}")
    return rows


def time_searches(args: argparse.Namespace) -> list[Row]:
    """Time the searches; contestants take turns, so that a machine that slows down does so for all."""
    rows = []
    for dim in DIMS["time"]:
        running = list(args.backends)
        for n in args.sizes:
            seconds: dict[str, list[float]] = {name: [] for name in running}
            for repeat in range(args.repeats["time"]):
                problem = SearchProblem.of(*gaussian(dim, n, repeat), None, None, NUM_KEYS)
                for name in list(running):
                    seconds[name].append(timed(name, problem))
                    if seconds[name][-1] > args.limit:
                        running.remove(name)
                        print(f"{name}: {seconds[name][-1]:.0f} s for d = {dim}, N = {n}: no further passes")
            rows += [time_row(name, dim, n, passes) for name, passes in seconds.items()]
        for name in args.backends:
            done = [row for row in rows if (row["contestant"], row["dim"]) == (name, dim)]
            print_table(done, "seconds", f"{name}, seconds, d = {dim}")
    return rows


def time_row(name: str, dim: int, n: int, passes: list[float]) -> Row:
    """Return the row of one cell; its first pass is dropped unless it is the only one."""
    kept = passes[1:] or passes
    row = {"part": "time", "contestant": name, "dim": dim, "n": n, "k": NUM_KEYS, "queries": n, "repeats": len(kept)}
    row |= {"leaf_size": LEAF_SIZE["time"]} if name == "ball_tree" else {}
    return row | {"seconds": statistics.mean(kept), "seconds_min": min(kept), "seconds_max": max(kept)}


def timed(name: str, problem: SearchProblem) -> float:
    """Return the seconds of one search."""
    start = time.perf_counter()
    entries("search_backend")[name].component(problem)
    return time.perf_counter() - start


def gaussian(dim: int, n: int, repeat: int) -> Tensor:
    """Return queries and keys (2, N, D) from N(0, I), the same in every run."""
    return torch.randn(2, n, dim, generator=torch.Generator().manual_seed(repeat + 100 * dim + 10_000 * n))


def check_supported(names: list[str]) -> None:
    """Refuse backends that cannot run here.

    Raises:
        ValueError: one cannot; the message says why.
    """
    problem = SearchProblem.of(*gaussian(3, 100, 0), None, None, NUM_KEYS)
    for name in names:
        if found := entries("search_backend")[name].traits.not_supported_reasons(problem):
            raise ValueError(f"{name} cannot run here: {'; '.join(found)}")


def print_table(rows: list[Row], key: str, title: str) -> None:
    """Print one line of sizes and one of values, and the curves that fit them."""
    print(f"\n{title}\n" + "".join(f"{row['n']:>10}" for row in rows))
    print("".join(f"{row[key]:>10.4g}" for row in rows))
    for fit in ball_tree.fits(rows, key):
        power = f", b = {fit['b']:.2f}" if "b" in fit else ""
        print(f"  {fit['curve']}: a = {fit['a']:.3g}{power}, R2 = {fit['r2']:.4f}", flush=True)


def write(args: argparse.Namespace, rows: list[Row]) -> list[Path]:
    """Write JSON, CSV and pictures, whose name is their provenance, and return their paths."""
    now = datetime.now().astimezone()
    machine = hardware(torch.device("cpu")) | {"threads": args.threads, "packages": package_versions()}
    chosen = {key: value for key, value in vars(args).items() if key not in ("out", "name")}
    record = {"bench": "tree", "created": now.isoformat(timespec="seconds"), "code": code_version()}
    record |= {"options": chosen, "machine": machine, "fits": ball_tree.all_fits(rows), "rows": rows}
    quick = "quick-" if args.quick else ""
    name = args.name or f"tree-{now:%Y%m%d-%H%M%S}-{quick}cpu-{args.threads}threads-{record['code']}"
    args.out.mkdir(parents=True, exist_ok=True)
    replace_file(args.out / f"{name}.json", (json.dumps(record, indent=1) + "\n").encode())
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(args.out / f"{name}.csv", text.getvalue().encode())
    return [args.out / f"{name}.json", args.out / f"{name}.csv", *ball_tree.draw(record, args.out / name)]


def main(words: list[str]) -> int:
    """Measure, print, write, draw; return the exit code."""
    args = parse(words)
    torch.set_num_threads(args.threads)
    check_supported(["ball_tree"] * (args.part != "time") + args.backends)
    rows = count_nodes(args) if args.part != "time" else []
    rows += time_searches(args) if args.part != "nodes" else []
    print("\n" + "\n".join(map(str, write(args, rows))))
    return 0


if __name__ == "__main__":
    options.run(main)
