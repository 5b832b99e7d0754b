"""Ball tree benchmark, and the curse of dimensionality: the thesis' section 6.3, figures 6.3 (nodes) and 6.4 (time).

  python -m run.bench.tree
  python -m run.bench.tree --part time --backends ball_tree,keops,exact

nodes: mean number of tree nodes that a query visits, over N, for 1 to 15 dimensions. time: building and searching with
all N queries, in 3 and 10 dimensions, and other exact backends, all on the CPU (the thesis ran its brute force on a
GPU). Keys and queries from N(0, I), k = 10. Curves are fitted to logarithms, a log N + b to the numbers of nodes.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
from pathlib import Path

import torch
from torch import Tensor

from graphgps_kmip.errors import ConfigError, report_mistakes
from graphgps_kmip.ops.native import pointer
from graphgps_kmip.ops.native.compile_kernels import SOURCES, load
from graphgps_kmip.registry import entries
from graphgps_kmip.report.figures import ball_tree_growth
from graphgps_kmip.search import SearchProblem

from . import bench_records
from .harness import Row, Stopwatch

BALL_TREE, BACKENDS = "ball_tree", entries("search_backend")
NUM_KEYS = 10
SIZES = [round(100 * 10 ** (i / 2)) for i in range(7)]
DIMS = {"nodes": (1, 2, 3, 4, 5, 10, 15), "time": (3, 10)}
REPEATS = {"nodes": 5, "time": 6}
LEAF_SIZE = {"nodes": 1, "time": 100}
DEPTH = 3  # the column of a node (start, count, child, depth)
QUICK = {"sizes": SIZES[:5], "queries": 300, "repeats": {"nodes": 2, "time": 3}}


def _library() -> ctypes.CDLL:
    return load(str(Path(__file__).with_name("ball_tree")), f"-I{SOURCES}")


class BallTree:
    """Keys in nested balls, each with the mean of its keys as centre c and their largest distance from it as radius r.

    ``<q, x> <= <q, c> + r |q|``. A ball with more than ``leaf_size`` keys is split by the key a farthest from a random
    key and the key b farthest from a. Ram and Gray 2012, arXiv:1202.6101; the thesis names no rule for the split.
    """

    def __init__(self, keys: Tensor, leaf_size: int = 100, seed: int = 0) -> None:
        num_keys, dim = keys.shape
        self._leaf_size = min(leaf_size, num_keys)
        self._keys = keys.detach().to(torch.float64, copy=True, memory_format=torch.contiguous_format)
        self._ids = torch.arange(num_keys)
        max_nodes = 2 * num_keys - 1  # with one key per leaf; pages that are never written cost nothing
        self._nodes = torch.empty(max_nodes, 4, dtype=torch.int64)
        self._centre, self._radius = (torch.empty(max_nodes, *shape, dtype=torch.float64) for shape in ((dim,), ()))
        build = _library().ball_tree_build
        build.restype = ctypes.c_long
        self.num_nodes = build(
            *(pointer(self._keys), pointer(self._ids)),
            *map(ctypes.c_long, (num_keys, dim, leaf_size)),
            ctypes.c_uint64(seed),
            *map(pointer, (self._nodes, self._centre, self._radius)),
        )
        if self.num_nodes < 0:
            raise MemoryError(f"no memory for a ball tree of {num_keys} keys of {dim} channels")
        self.depth = int(self._nodes[: self.num_nodes, DEPTH].max())

    def search(self, q: Tensor, num_keys: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return index (N, K) (-1: missing), score (-inf) and visited balls (N,) of queries (N, D), depth first."""
        queries = q.detach().to(torch.float64).contiguous()
        score = queries.new_full((len(q), num_keys), -torch.inf)
        index = torch.full_like(score, -1, dtype=torch.int64)
        visited = index.new_empty(len(q))
        failed = _library().ball_tree_search(
            *(pointer(self._keys), pointer(self._ids)),
            *map(ctypes.c_long, (queries.size(1), self._leaf_size, self.depth)),
            *map(pointer, (self._nodes, self._centre, self._radius, queries)),
            *map(ctypes.c_long, (len(q), num_keys)),
            ctypes.c_int(torch.get_num_threads()),
            *map(pointer, (index, score, visited)),
        )
        if failed:
            raise MemoryError("no memory for the search of a ball tree")
        score, order = score.sort(dim=1, descending=True, stable=True)
        return index.gather(1, order), score.to(q.dtype), visited


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    args = bench_records.parse(
        argv,
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
    args.backends = bench_records.split_names("backends", args.backends, [BALL_TREE, *BACKENDS])
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
        print_fits(rows[-len(args.sizes) :], "visited", f"nodes visited, d = {dim}")
    return rows


def time_searches(args: argparse.Namespace) -> list[Row]:
    """Time the searches alternately, with the same tensors in each repeat."""
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
            print_fits(done, "seconds", f"{name}, seconds, d = {dim}")
    return rows


def search(name: str, problem: SearchProblem) -> None:
    """Search with the ball tree, which is built for it, or a backend."""
    if name == BALL_TREE:
        BallTree(problem.k[0], LEAF_SIZE["time"]).search(problem.q[0], NUM_KEYS)
    else:
        BACKENDS[name].component(problem)


def time_row(name: str, dim: int, n: int, passes: list[float]) -> Row:
    """Return the row of one cell; its first pass is dropped unless it is the only one."""
    passes = passes[1:] or passes
    row = {"part": "time", "contestant": name, "dim": dim, "n": n, "k": NUM_KEYS, "queries": n, "repeats": len(passes)}
    row |= {"leaf_size": LEAF_SIZE["time"]} if name == BALL_TREE else {}
    return row | {"seconds": statistics.mean(passes), "seconds_min": min(passes), "seconds_max": max(passes)}


def gaussian(dim: int, n: int, repeat: int) -> Tensor:
    """Return queries and keys (2, N, D) from N(0, I), the same in every run."""
    return torch.randn(2, n, dim, generator=torch.Generator().manual_seed(repeat + 100 * dim + 10_000 * n))


def print_fits(rows: list[Row], key: str, title: str) -> None:
    """Print the sizes and values, and the curves that fit them."""
    print(f"\n{title}\n{bench_records.table(rows, ['n', key])}")
    for fit in ball_tree_growth.fits(rows, key):
        power = f", b = {fit['b']:.2f}" if "b" in fit else ""
        print(f"  {fit['curve']}: a = {fit['a']:.3g}{power}, R2 = {fit['r2']:.4f}", flush=True)


@report_mistakes
def main(argv: list[str]) -> int:
    """Measure, print, write, draw; return the exit code."""
    args = parse(argv)
    torch.set_num_threads(args.threads)
    problem = SearchProblem.of(*gaussian(3, 100, 0), None, None, NUM_KEYS)
    for name in set(args.backends) - {BALL_TREE}:
        if reasons := BACKENDS[name].traits.not_supported_reasons(problem):
            raise ConfigError(f"{name} cannot run here: {'; '.join(reasons)}")
    rows = count_nodes(args) if args.part != "time" else []
    rows += time_searches(args) if args.part != "nodes" else []
    record, path = bench_records.write("tree", args, rows, fits=ball_tree_growth.all_fits(rows))
    print("\n" + "\n".join(map(str, [path, *ball_tree_growth.draw(record, path.with_suffix(""))])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
