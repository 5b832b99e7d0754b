"""Ball tree benchmark, and the curse of dimensionality: the thesis' section 6.3, figures 6.3 (nodes) and 6.4 (time).

  python -m run.bench.tree
  python -m run.bench.tree --quick
  python -m run.bench.tree --part time --backends ball_tree,keops,exact

nodes: mean number of tree nodes that a query visits, over N, leaf size 1, for 1 to 15 dimensions; 5 repeats.
time: building and searching with all N queries, leaf size 100, in 3 and 10 dimensions; 6 repeats, the first dropped;
beside it other exact backends, all on the CPU (the thesis ran its brute force on a GPU). Keys and queries from N(0, I),
k = 10, N = 100 sqrt(10)^i for i = 0..6. The curves a N^b and a N log N are fitted to logarithms (R2 is theirs; times
from N = 1000), a log N + b to the numbers of nodes.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from torch import Tensor

from graphgps_kmip.registry import entries
from graphgps_kmip.report.figures import ball_tree_growth
from graphgps_kmip.search import SearchProblem

from . import bench_records
from .ball_tree import BallTree
from .harness import Row, Stopwatch

BALL_TREE, BACKENDS = "ball_tree", entries("search_backend")
NUM_KEYS = 10
SIZES = [round(100 * 10 ** (i / 2)) for i in range(7)]
DIMS = {"nodes": (1, 2, 3, 4, 5, 10, 15), "time": (3, 10)}
REPEATS = {"nodes": 5, "time": 6}
LEAF_SIZE = {"nodes": 1, "time": 100}
QUICK = {"sizes": SIZES[:5], "queries": 300, "repeats": {"nodes": 2, "time": 3}}


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    args = bench_records.parse(
        words,
        __doc__,
        part=(("nodes", "time", "both"), "both", "what to measure"),
        quick=(bool, False, "N up to 10^4, fewer repeats and queries: under a minute"),
        backends=(str, "ball_tree,tree,cpu,chunked", "time: which"),
        queries=(bench_records.positive, 2000, "nodes: max. queries of a repeat"),
        limit=(float, 60, "time: a backend with a slower pass skips larger N, seconds"),
        name=(str, "", "of the files instead of when and with what code they were made"),
    )
    args.sizes, args.repeats = (QUICK["sizes"], QUICK["repeats"]) if args.quick else (SIZES, REPEATS)
    args.queries = min(args.queries, QUICK["queries"]) if args.quick else args.queries
    args.backends = bench_records.listed("backends", args.backends, [BALL_TREE, *BACKENDS])
    return args


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
            row = {"part": "nodes", "contestant": BALL_TREE, "dim": dim, "n": n, "k": NUM_KEYS, "leaf_size": 1}
            row |= {"queries": min(n, args.queries), "repeats": len(means), "visited": statistics.mean(means)}
            rows.append(row | {"visited_std": statistics.stdev(means)})
        print_table(rows[-len(args.sizes) :], "visited", f"nodes visited, d = {dim}")
    return rows


def time_searches(args: argparse.Namespace) -> list[Row]:
    """Time the searches alternately, on the same tensors in each repeat."""
    rows = []
    for dim in DIMS["time"]:
        running = list(args.backends)
        for n in args.sizes:
            seconds: dict[str, list[float]] = {name: [] for name in running}
            for repeat in range(args.repeats["time"]):
                problem = SearchProblem.of(*gaussian(dim, n, repeat), None, None, NUM_KEYS)
                for name in tuple(running):
                    watch = Stopwatch("cpu")
                    search(name, problem)
                    seconds[name].append(watch.lap())
                    if seconds[name][-1] > args.limit:
                        running.remove(name)
                        print(f"{name}: {seconds[name][-1]:.0f} s for d = {dim}, N = {n}: no further passes")
            rows += [time_row(name, dim, n, passes) for name, passes in seconds.items()]
        for name in args.backends:
            done = [row for row in rows if (row["contestant"], row["dim"]) == (name, dim)]
            print_table(done, "seconds", f"{name}, seconds, d = {dim}")
    return rows


def search(name: str, problem: SearchProblem) -> None:
    """Search with the ball tree, which is built for it, or a backend."""
    if name == BALL_TREE:
        BallTree(problem.k[0], LEAF_SIZE["time"]).search(problem.q[0], NUM_KEYS)
    else:
        BACKENDS[name].component(problem)


def time_row(name: str, dim: int, n: int, passes: list[float]) -> Row:
    """Return the row of one cell; its first pass is dropped unless it is the only one."""
    kept = passes[1:] or passes
    row = {"part": "time", "contestant": name, "dim": dim, "n": n, "k": NUM_KEYS, "queries": n, "repeats": len(kept)}
    row |= {"leaf_size": LEAF_SIZE["time"]} if name == BALL_TREE else {}
    return row | {"seconds": statistics.mean(kept), "seconds_min": min(kept), "seconds_max": max(kept)}


def gaussian(dim: int, n: int, repeat: int) -> Tensor:
    """Return queries and keys (2, N, D) from N(0, I), the same in every run."""
    return torch.randn(2, n, dim, generator=torch.Generator().manual_seed(repeat + 100 * dim + 10_000 * n))


def print_table(rows: list[Row], key: str, title: str) -> None:
    """Print the sizes and values, and the curves that fit them."""
    print(f"\n{title}\n{bench_records.table(rows, ['n', key])}")
    for fit in ball_tree_growth.fits(rows, key):
        power = f", b = {fit['b']:.2f}" if "b" in fit else ""
        print(f"  {fit['curve']}: a = {fit['a']:.3g}{power}, R2 = {fit['r2']:.4f}", flush=True)


def main(words: list[str]) -> int:
    """Measure, print, write, draw; return the exit code.

    Raises:
        ValueError: a backend cannot run here; the message says why.
    """
    args = parse(words)
    torch.set_num_threads(args.threads)
    problem = SearchProblem.of(*gaussian(3, 100, 0), None, None, NUM_KEYS)
    for name in set(args.backends) - {BALL_TREE}:
        if reasons := BACKENDS[name].traits.not_supported_reasons(problem):
            raise ValueError(f"{name} cannot run here: {'; '.join(reasons)}")
    rows = count_nodes(args) if args.part != "time" else []
    rows += time_searches(args) if args.part != "nodes" else []
    record, path = bench_records.write("tree", args, rows, fits=ball_tree_growth.all_fits(rows))
    print("\n" + "\n".join(map(str, [path, *ball_tree_growth.draw(record, path.with_suffix(""))])))
    return 0


if __name__ == "__main__":
    bench_records.run(main)
