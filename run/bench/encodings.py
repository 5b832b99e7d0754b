"""Encoding benchmark: Laplacian eigenvectors and random-walk probabilities, ours against torch_geometric's transforms.

  python -m run.bench.encodings

Data: "graphs" is half trees with rings (151 nodes) and half triangulations (479 nodes); "road" is one connected graph.
Methods: "ours" before the first epoch, nothing stored; "stored" is a second start; "pyg" is a loop over the graphs with
torch_geometric's transforms; "faster" compares the minimum times. A paired benchmark, see harness.py.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from threadpoolctl import threadpool_limits
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg, set_cfg
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE, BaseTransform

import graphgps_kmip.gym  # noqa: F401  (registers the config groups)
from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.precomputed_encodings import cores, encoded
from graphgps_kmip.errors import report_mistakes
from graphgps_kmip.gym.data_loading import enabled_encodings

from . import bench_records
from .harness import Bounds, Facts, Pass, Row, Stopwatch, measure
from .synthetic_graphs import planar, road_graph, tree

COLUMNS = (
    "data encoding method graphs nodes edges processes threads repeats first_ms total_ms total_min_ms total_max_ms "
    "faster memory_mib status"
).split()
PAIRS, STEPS = 10, 20  # eigenvectors beside the trivial one; steps of the walks
Values = list[np.ndarray]

# data -> (generator, number of graphs, nodes of the one large graph) -> graphs
DATA: dict[str, Callable[[np.random.Generator, int, int], list[Data]]] = {
    "graphs": lambda rng, count, _: [(tree if i % 2 else planar)(rng) for i in range(count)],
    "road": lambda rng, _, nodes: [road_graph(rng, nodes, nodes * 3 // 2)],
}
TRANSFORMS: dict[str, Callable[[], BaseTransform]] = {
    "LapPE": lambda: AddLaplacianEigenvectorPE(PAIRS, attr_name="pe", is_undirected=True),
    "RWSE": lambda: AddRandomWalkPE(STEPS, attr_name="pe"),
}
OUR_ATTRIBUTES = {"LapPE": "EigVecs", "RWSE": "pestat_RWSE"}


@report_mistakes
def main(argv: list[str]) -> int:
    """Measure, compare, print, write; return the exit code."""
    positive = bench_records.positive
    args = bench_records.parse(
        argv,
        __doc__,
        data=(str, ",".join(DATA), "comma-separated"),
        encodings=(str, ",".join(TRANSFORMS), "comma-separated"),
        graphs=(positive, 2000, "number of small graphs"),
        nodes=(positive, 100_000, "nodes of the road graph"),
        repeats=(positive, 3, "measured passes"),
        processes=(positive, cores(), "of ours"),
        limit=(float, 600, "seconds that the passes of a method may take"),
    )
    args.data = bench_records.split_names("data", args.data, DATA)
    args.encodings = bench_records.split_names("encodings", args.encodings, TRANSFORMS)
    rows: list[Row] = []
    with TemporaryDirectory() as folder:
        for data in args.data:
            for encoding in args.encodings:
                cells = run_methods(data, encoding, args, folder)
                done = measure([cells], Bounds(args.repeats, args.limit))
                loop = next(row for row in done if row["method"] == "pyg")
                for row in done:
                    del row["folder"]  # a path of this machine
                    rows.append(row | {"faster": faster(row, loop, args.limit)})
    return bench_records.save(args, rows, COLUMNS)


def run_methods(data: str, encoding: str, args: argparse.Namespace, folder: str) -> list[Row]:
    """Return the methods of one kind of data: a single graph is encoded in one process, by every method."""
    common = {"bench": "encodings", "data": data, "encoding": encoding, "n": args.nodes, "num_graphs": args.graphs}
    common |= {"device": "cpu", "folder": folder, "threads": args.threads}
    processes = {"ours": 1 if data == "road" else args.processes, "pyg": 1}
    processes["stored"] = processes["ours"]
    return [common | {"method": name, "processes": number} for name, number in processes.items()]


def make(cell: Row, small: bool) -> tuple[Pass, Facts]:
    """Return one pass over all graphs, and its facts, their sizes."""
    data, encoding, processes = cell["data"], cell["encoding"], 1 if small else cell["processes"]
    rng = np.random.default_rng(0)
    graphs = DATA["graphs"](rng, 2, 0) if small else DATA[data](rng, cell["num_graphs"], cell["n"])
    folder = Path(cell["folder"]) if cell["method"] == "stored" else None
    for_run = partial(encode_for_run, processes=processes, folder=folder)
    encode = encode_by_transform if cell["method"] == "pyg" else for_run

    def run() -> dict[str, float]:
        with threadpool_limits(cell["threads"]):
            watch = Stopwatch("cpu")
            encode(encoding, graphs)
            return {"total": watch.lap()}

    sizes = {"graphs": len(graphs), "nodes": sum(graph.num_nodes for graph in graphs)}
    sizes["edges"] = sum(graph.num_edges for graph in graphs) // 2
    return run, lambda: sizes


def encode_for_run(encoding: str, graphs: Sequence[Data], processes: int = 1, folder: Path | None = None) -> Values:
    """Return the encodings of a run, stored if there is a folder, of each graph (N, 10 or 20)."""
    set_cfg(cfg)
    cfg.posenc_LapPE.enable, cfg.posenc_RWSE.enable = encoding == "LapPE", encoding == "RWSE"
    cfg.posenc_LapPE.eigen.max_freqs = PAIRS + 1
    cfg.posenc_RWSE.kernel.times_func = f"range(1, {STEPS + 1})"
    graphs = encoded(GraphDataset(graphs), enabled_encodings(cfg), folder, processes).graphs
    return [graph[OUR_ATTRIBUTES[encoding]][:, encoding == "LapPE" :].numpy() for graph in graphs]


def encode_by_transform(encoding: str, graphs: Sequence[Data]) -> Values:
    """Return the encodings of torch_geometric's transform of each graph (N, 10 or 20)."""
    transform = TRANSFORMS[encoding]()
    return [transform(graph).pe.numpy() for graph in graphs]


def faster(row: Row, loop: Row, limit: float) -> float | str | None:
    """Return the loop's time divided by that of a row; a bound if the loop did not end in time."""
    if row["status"] != "ok":
        return None
    if loop["status"] == "ok":
        return loop["total_min_ms"] / row["total_min_ms"]
    return f"> {math.floor(1000 * limit / row['total_min_ms'])}" if loop["status"] == "time limit" else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
