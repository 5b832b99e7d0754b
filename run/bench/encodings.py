"""Encoding benchmark: Laplacian eigenvectors and random-walk probabilities, ours against torch_geometric's transforms.

  python -m run.bench.encodings
  python -m run.bench.encodings --quick
  python -m run.bench.encodings --data trees,planar --encodings LapPE --repeats 5

Data: "graphs" is half trees with rings (151 nodes, as in Peptides) and half triangulations (479 nodes, as superpixels
are); "trees" and "planar" are one half each; "road" is one connected graph with three edges for every two nodes.
Methods: "ours" is what a run does before its first epoch, on all cores, nothing stored; "pyg" is a loop over the
graphs with AddLaplacianEigenvectorPE(k=10, is_undirected=True) or AddRandomWalkPE(walk_length=20) and torch's threads;
"ours, single" is one process of one thread, "pyg, pool" as many processes as ours; "stored" is ours with a directory
for its results, a second start (first_ms: the first one). A paired benchmark, see harness.py. "faster" compares the
quickest passes, with the loop's. "deviation" is ours from torch_geometric's in double precision (float32 for RWSE) on a
few graphs of the kind, the largest difference: for LapPE of projectors, since eigenvectors have no sign, and where an
eigenvalue repeats only their space is determined.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg, set_cfg
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE, BaseTransform

import graphgps_kmip.gym  # noqa: F401  (registers the config groups)
from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.precomputed_encodings import encoded
from graphgps_kmip.data.worker_processes import cores, in_order
from graphgps_kmip.encoding.laplacian import laplacian_eigenpairs
from graphgps_kmip.gym.posenc import enabled_encodings

from . import bench_records
from .harness import Bounds, Facts, Pass, Row, Stopwatch, measure
from .synthetic_graphs import planar, road_graph, tree

COLUMNS = (
    "data encoding method graphs nodes edges processes threads repeats first_ms total_ms total_min_ms total_max_ms"
)
COLUMNS = f"{COLUMNS} faster memory_mib deviation status".split()
QUICK = {"graphs": 100, "nodes": 3000, "repeats": 2, "limit": 20.0}
PAIRS, STEPS = 10, 20  # eigenvectors beside the trivial one; steps of the walks
CHUNK = 10  # graphs that a process of torch_geometric's loop is handed at a time
CHECKED_GRAPHS, CHECKED_NODES = 20, 1000  # few, for ARPACK without a shift is slow in double precision
SAME = 1e-6  # eigenvalues that are nearer than this count as one, whose space is compared
Values = list[np.ndarray]

# data -> (generator, number of graphs, nodes of the one large graph) -> graphs
DATA: dict[str, Callable[[np.random.Generator, int, int], list[Data]]] = {
    "graphs": lambda rng, count, _: [(tree if i % 2 else planar)(rng) for i in range(count)],
    "trees": lambda rng, count, _: [tree(rng) for _ in range(count)],
    "planar": lambda rng, count, _: [planar(rng) for _ in range(count)],
    "road": lambda rng, _, nodes: [road_graph(rng, nodes, nodes * 3 // 2)],
}
TRANSFORMS: dict[str, Callable[[], BaseTransform]] = {
    "LapPE": lambda: AddLaplacianEigenvectorPE(PAIRS, attr_name="found", is_undirected=True),
    "RWSE": lambda: AddRandomWalkPE(STEPS, attr_name="found"),
}
OUR_ATTRIBUTES = {"LapPE": "EigVecs", "RWSE": "pestat_RWSE"}


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    positive = bench_records.positive
    args = bench_records.parse(
        words,
        __doc__,
        data=(str, "graphs,road", "comma-separated: graphs, trees, planar, road"),
        encodings=(str, ",".join(TRANSFORMS), "comma-separated"),
        graphs=(positive, 2000, "number of small graphs"),
        nodes=(positive, 100_000, "nodes of the road graph"),
        repeats=(positive, 3, "measured passes"),
        processes=(positive, cores(), "of ours, and of the pool"),
        limit=(float, 600, "seconds that the passes of a method may take"),
        memory=(float, None, "GiB that a method may take instead of 4/5 of what is free"),
        quick=(bool, False, "fewer and smaller graphs: a minute"),
    )
    vars(args).update(QUICK if args.quick else {})
    args.data = bench_records.listed("data", args.data, DATA)
    args.encodings = bench_records.listed("encodings", args.encodings, TRANSFORMS)
    if args.memory is not None and args.memory <= 0:
        raise ValueError(f"--memory must be positive, got {args.memory:g}")
    return args


def main(words: list[str]) -> int:
    """Measure, compare, print, write; return the exit code."""
    args = parse(words)
    rows: list[Row] = []
    with TemporaryDirectory() as folder:
        for data in args.data:
            for encoding in args.encodings:
                cells = cells_of(data, encoding, args, folder)
                done = measure([cells], Bounds(args.repeats, args.limit))
                loop = next(row for row in done if row["method"] == "pyg")
                for row in done:
                    del row["folder"]  # a path of this machine
                    rows.append(row | {"faster": faster(row, loop, args.limit)})
    return bench_records.save("encodings", args, rows, COLUMNS)


def cells_of(data: str, encoding: str, args: argparse.Namespace, folder: str) -> list[Row]:
    """Return the methods of one kind of data: a single graph is encoded in one process, by every method."""
    methods = [("ours", args.processes, args.threads), ("pyg", 1, args.threads)]
    if data != "road":
        methods += [("ours, single", 1, 1), ("pyg, pool", args.processes, 1)]
    common = {"bench": "encodings", "data": data, "encoding": encoding, "n": args.nodes, "num_graphs": args.graphs}
    common |= {"device": "cpu", "folder": folder, "memory_gib": args.memory}
    return [
        common | {"method": name, "processes": 1 if data == "road" else processes, "threads": threads}
        for name, processes, threads in [*methods, ("stored", args.processes, args.threads)]
    ]


def make(cell: Row, small: bool) -> tuple[Pass, Facts]:
    """Return one pass over all graphs, and what gives their sizes and, of ours, the deviation."""
    data, encoding, processes = cell["data"], cell["encoding"], 1 if small else cell["processes"]
    rng = np.random.default_rng(0)
    graphs = DATA["trees"](rng, 2, 0) if small else DATA[data](rng, cell["num_graphs"], cell["n"])
    folder = Path(cell["folder"]) if cell["method"] == "stored" else None
    encode = partial(theirs, processes=processes)
    if not cell["method"].startswith("pyg"):
        encode = partial(ours, processes=processes, folder=folder)

    def run() -> dict[str, float]:
        with threadpool_limits(cell["threads"]):
            watch = Stopwatch("cpu")
            encode(encoding, graphs)
            return {"total": watch.lap()}

    def facts() -> Row:
        sizes = {"graphs": len(graphs), "nodes": sum(graph.num_nodes for graph in graphs)}
        sizes["edges"] = sum(graph.num_edges for graph in graphs) // 2
        if cell["method"] != "ours":
            return sizes
        few = DATA[data](np.random.default_rng(1), min(CHECKED_GRAPHS, len(graphs)), min(CHECKED_NODES, cell["n"]))
        return sizes | {"deviation": deviation(encoding, few)}

    return run, facts


def ours(encoding: str, graphs: Sequence[Data], processes: int = 1, folder: Path | None = None) -> Values:
    """Return what a run computes, and stores below a directory if there is one, of each graph (N, 10 or 20)."""
    set_cfg(cfg)
    cfg.posenc_LapPE.enable, cfg.posenc_RWSE.enable = encoding == "LapPE", encoding == "RWSE"
    cfg.posenc_LapPE.eigen.max_freqs = PAIRS + 1
    cfg.posenc_RWSE.kernel.times_func = f"range(1, {STEPS + 1})"
    found = encoded(GraphDataset(graphs), enabled_encodings(cfg), folder, processes).graphs
    return [graph[OUR_ATTRIBUTES[encoding]][:, encoding == "LapPE" :].numpy() for graph in found]


def theirs(encoding: str, graphs: Sequence[Data], processes: int = 1) -> Values:
    """Return what torch_geometric's transform gives for each graph (N, 10 or 20); it leaves the graphs as they are."""
    transform = TRANSFORMS[encoding]()
    if processes == 1:
        return _transformed(transform, graphs, range(len(graphs)))
    chunks = [range(first, min(first + CHUNK, len(graphs))) for first in range(0, len(graphs), CHUNK)]
    results = in_order(encoding, partial(_transformed, transform, graphs), chunks, processes)
    return [values for chunk in results for values in chunk]


def _transformed(transform: BaseTransform, graphs: Sequence[Data], chunk: range) -> Values:
    return [transform(graphs[number]).found.numpy() for number in chunk]


def faster(row: Row, loop: Row, limit: float) -> float | str | None:
    """Return how many times as fast as the loop a row is; a bound where the loop did not end in time."""
    if row["status"] != "ok":
        return None
    if loop["status"] == "ok":
        return loop["total_min_ms"] / row["total_min_ms"]
    return f"> {math.floor(1000 * limit / row['total_min_ms'])}" if loop["status"] == "time limit" else None


def deviation(encoding: str, graphs: list[Data]) -> float:
    """Return the largest difference between ours and torch_geometric's, in double precision where it can be had."""
    if encoding == "RWSE":
        pairs = zip(ours(encoding, graphs), theirs(encoding, graphs), strict=True)
        return max(float(np.abs(own - other).max()) for own, other in pairs)
    double = [graph.clone() for graph in graphs]
    for graph in double:
        graph.edge_weight = torch.ones(graph.num_edges, dtype=torch.float64)
    found = zip(graphs, ours(encoding, graphs), theirs(encoding, double), strict=True)
    return float(max(_space_deviation(*one) for one in found))


def _space_deviation(graph: Data, own: np.ndarray, other: np.ndarray) -> float:
    values = laplacian_eigenpairs(graph.edge_index, graph.num_nodes, PAIRS + 2)[0].numpy()[1:]
    spaces = np.split(np.arange(PAIRS + 1), np.flatnonzero(np.diff(values) > SAME) + 1)
    whole = [space for space in spaces if space[-1] < PAIRS]  # the last one may be cut
    return max(np.abs(own[:, one] @ own[:, one].T - other[:, one] @ other[:, one].T).max() for one in whole)


if __name__ == "__main__":
    bench_records.run(main)
