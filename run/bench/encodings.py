"""Laplacian eigenvectors and random-walk probabilities: ours, as a run computes them, against torch_geometric's.

  python run/bench/encodings.py
  python run/bench/encodings.py --quick
  python run/bench/encodings.py --data trees,planar --encodings LapPE --repeats 5

Data: "graphs" is half trees with rings (151 nodes, as in Peptides) and half triangulations (479 nodes, as superpixels
are); "trees" and "planar" are one half each; "road" is one connected graph with three edges for every two nodes.
Contestants: "ours" is what a run does before its first epoch, on all cores, nothing kept; "pyg" is a loop over the
graphs with AddLaplacianEigenvectorPE(k=10, is_undirected=True) or AddRandomWalkPE(walk_length=20) and torch's threads;
"ours, alone" is one process of one thread, "pyg, pool" as many processes as ours; "kept" is ours with a folder to keep
results in: its slowest turn is a first start, its quickest one a second start. Each has its own process, bounded in
time and memory, and they take turns. "faster" compares the quickest turns, with the loop's. "deviation" is ours from
torch_geometric's in double precision (float32 for RWSE) on a few graphs of the kind, the largest difference: for LapPE
of projectors, since eigenvectors have no sign, and where an eigenvalue repeats only their space is determined.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

# Not the folder of this file, which Python puts there: `attention` would then be a name that anyone can import.
sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch_geometric.data import Data  # noqa: E402

from graphgps_kmip.data.parallel_chunks import cores  # noqa: E402
from graphgps_kmip.encoding.laplacian import laplacian_eigenpairs  # noqa: E402
from run.bench import options  # noqa: E402
from run.bench.encoding_cases import DATA, ENCODINGS, PAIRS, ours, theirs  # noqa: E402
from run.bench.encoding_turns import Contestant, Row  # noqa: E402
from run.bench.knn_graphs import table, write  # noqa: E402

COLUMNS = "data encoding contestant graphs nodes edges processes threads repeats".split()
COLUMNS += "s s_min s_max faster memory_mib deviation status".split()
QUICK = {"graphs": 100, "nodes": 3000, "repeats": 2, "limit": 20.0}
CHECKED_GRAPHS, CHECKED_NODES = 20, 1000  # few, for ARPACK without a shift is slow in double precision
SAME = 1e-6  # eigenvalues that are nearer than this count as one, whose space is compared


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line.

    Raises:
        ValueError: unknown data or encodings, or a bound that is not positive.
    """
    parser = options.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", default="graphs,road", metavar="NAMES", help="graphs, trees, planar, road (default %(default)s)")
    add("--encodings", default=",".join(ENCODINGS), metavar="NAMES", help="which (default %(default)s)")
    add("--graphs", type=options.positive, default=2000, help="number of small graphs (default 2000)")
    add("--nodes", type=options.positive, default=100_000, help="nodes of the road graph (default 100000)")
    add("--repeats", type=options.positive, default=3, help="turns (default 3)")
    add("--processes", type=options.positive, default=cores(), help="of ours, and of the pool (default %(default)s)")
    add("--threads", type=options.positive, default=torch.get_num_threads(), help="of the loop (default %(default)s)")
    add("--limit", type=float, default=600, help="seconds that the turns of a contestant may take (default 600)")
    add("--memory", type=float, metavar="GIB", help="that a contestant may take (default 4/5 of what is free)")
    add("--quick", action="store_true", help="fewer and smaller graphs: a minute")
    add("--out", type=Path, default=options.RESULTS, metavar="FOLDER", help="where to write (default results/bench)")
    args = parser.parse_args(words)
    vars(args).update(QUICK if args.quick else {})
    for option, known in (("data", DATA), ("encodings", ENCODINGS)):
        names = getattr(args, option).split(",")
        if unknown := set(names) - set(known):
            raise ValueError(f"--{option} {', '.join(sorted(unknown))}: there are {', '.join(known)}")
        setattr(args, option, names)
    if args.limit <= 0 or (args.memory or 1) <= 0:
        raise ValueError(f"--limit and --memory must be positive, got {args.limit:g} and {args.memory}")
    return args


def contestants(data: str, args: argparse.Namespace) -> list[Row]:
    """Return who takes part: a single graph is encoded in one process, whoever does it."""
    rows = [
        {"contestant": "ours", "processes": args.processes, "threads": args.threads},
        {"contestant": "pyg", "processes": 1, "threads": args.threads},
        {"contestant": "ours, alone", "processes": 1, "threads": 1},
        {"contestant": "pyg, pool", "processes": args.processes, "threads": 1},
        {"contestant": "kept", "processes": args.processes, "threads": args.threads},
    ]
    return [row | {"processes": 1} for row in (*rows[:2], rows[-1])] if data == "road" else rows


def measure(args: argparse.Namespace) -> Iterator[list[Row]]:
    """Yield the rows of each kind of data and encoding; a difference between the results is looked for first."""
    for data in args.data:
        graphs = DATA[data](np.random.default_rng(0), args.graphs, args.nodes)
        size = {"graphs": len(graphs), "nodes": sum(graph.num_nodes for graph in graphs)}
        size["edges"] = sum(graph.num_edges for graph in graphs) // 2
        for encoding in args.encodings:
            what = {"data": data, "encoding": encoding, **size}
            few = DATA[data](np.random.default_rng(1), min(CHECKED_GRAPHS, args.graphs), CHECKED_NODES)
            # In a process, too: contestants are forked off this one, which therefore must not start threads.
            with ProcessPoolExecutor(1, multiprocessing.get_context("fork"), torch.set_num_threads, (1,)) as other:
                difference = other.submit(deviation, encoding, few).result()
            bounds = args.limit, args.memory
            with TemporaryDirectory() as folder:
                running = [Contestant(what | row, graphs, *bounds, Path(folder)) for row in contestants(data, args)]
                for _ in range(args.repeats):
                    for contestant in running:
                        contestant.turn()
                rows = [contestant.end() for contestant in running]
            loop = next(row for row in rows if row["contestant"] == "pyg")
            rows[0]["deviation"] = difference
            yield [row | {"faster": faster(row, loop, args.limit)} for row in rows]


def faster(row: Row, loop: Row, limit: float) -> float | str | None:
    """Say how many times as fast as the loop a row is; a bound where the loop did not come to its end in time."""
    if row["status"] != "ok":
        return None
    if loop["status"] == "ok":
        return loop["s_min"] / row["s_min"]
    return f"> {math.floor(limit / row['s_min'])}" if loop["status"].startswith("over") else None


def deviation(encoding: str, graphs: list[Data]) -> float:
    """Return the largest difference between ours and torch_geometric's, in double precision where it can be had."""
    if encoding == "RWSE":
        pairs = zip(ours(encoding, graphs, 1), theirs(encoding, graphs, 1), strict=True)
        return max(float(np.abs(own - other).max()) for own, other in pairs)
    double = [graph.clone() for graph in graphs]
    for graph in double:
        graph.edge_weight = torch.ones(graph.num_edges, dtype=torch.float64)
    found = zip(graphs, ours(encoding, graphs, 1), theirs(encoding, double, 1), strict=True)
    return max(_space_deviation(*one) for one in found)


def _space_deviation(graph: Data, own: np.ndarray, other: np.ndarray) -> float:
    values = laplacian_eigenpairs(graph.edge_index, graph.num_nodes, PAIRS + 2)[0].numpy()[1:]
    spaces = np.split(np.arange(PAIRS + 1), np.flatnonzero(np.diff(values) > SAME) + 1)
    whole = [space for space in spaces if space[-1] < PAIRS]  # the last one may be cut
    return max(np.abs(own[:, one] @ own[:, one].T - other[:, one] @ other[:, one].T).max() for one in whole)


def main(words: list[str]) -> int:
    """Measure, compare, print, write; return the exit code."""
    args = parse(words)
    rows = [row for some in measure(args) for row in some]
    paths = write("encodings", args, rows, COLUMNS)
    print("\n".join([table(rows, COLUMNS), "", *map(str, paths)]))
    return 0


if __name__ == "__main__":
    options.run(main)
