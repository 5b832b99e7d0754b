"""k-NN graph benchmark: ours (ties by rule, edges) against what scipy and scikit-learn offer, on point clouds.

  python -m run.bench.knn_graphs
  python -m run.bench.knn_graphs --quick
  python -m run.bench.knn_graphs --n 500000 --k 8 --clouds 1 --repeats 3 --memory

Clouds: indoor blocks (1 m x 1 m x 3 m of walls, floor, ceiling and furniture, to the millimetre, a fifth of the points
drawn twice, as in S3DIS), meshes (vertices that several faces repeat), uniform and Gaussian ones, float32.
Methods: "ours" builds the whole graph (exactly k in-edges, ties by distance, coordinates, index), "ours, distances"
adds the edge lengths; "scipy" is cKDTree(points).query(points, k + 1), the floor: no tie rule, the point itself not
always first, no edges; "sklearn" is NearestNeighbors(n_neighbors=k).fit(points).kneighbors(). They are timed
alternately on each cloud; the first pass is not counted. Times are milliseconds a cloud, on the clock ("ms") and of the
CPU ("cpu_ms", all threads together), which says more where a machine is shared; "vs_scipy" compares the latter.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.spatial import cKDTree
from sklearn.neighbors import NearestNeighbors
from torch_geometric.data import Data

from graphgps_kmip.encoding.knn import KNNGraph

from . import bench_records
from .harness import PeakMemory, Row, alternate

COLUMNS = "data method n k threads clouds repeats ms ms_min ms_max cpu_ms cpu_ms_min vs_scipy memory_mib".split()
QUICK = {"n": 1024, "clouds": 2, "repeats": 2}
REPEATED = 0.2  # share of the points that are drawn twice


def block(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return an indoor block: two walls, floor, ceiling, a table top and a box, to the millimetre, with duplicates."""
    u, v, surface = rng.random(n), rng.random(n), rng.integers(0, 6, n)
    flat = [np.zeros(n), np.full(n, 3.0), np.full(n, 0.75), 0.4 + 0.5 * rng.random(n)]  # heights of the horizontal ones
    horizontal = [[u, v, flat[0]], [u, v, flat[1]], [0.2 + 0.6 * u, 0.2 + 0.6 * v, flat[2]]]
    horizontal += [[0.3 + 0.2 * u, 0.3 + 0.2 * v, flat[3]]]
    walls = [[np.zeros(n), u, 3 * v], [u, np.ones(n), 3 * v]]
    return _with_duplicates(rng, np.choose(surface, [*horizontal, *walls]).T.round(3), REPEATED)


def mesh(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return the vertices of a mesh whose faces do not share them: a height field, each vertex three times or so."""
    points = rng.random((n, 3))
    points[:, 2] = np.sin(6 * points[:, 0]) * np.cos(4 * points[:, 1])
    return _with_duplicates(rng, points, 2 / 3)


def _with_duplicates(rng: np.random.Generator, points: np.ndarray, share: float) -> np.ndarray:
    count = int(share * len(points))
    points[:count] = points[count:][rng.integers(0, len(points) - count, count)]
    return rng.permutation(points)


DATA: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "blocks": block,
    "meshes": mesh,
    "uniform": lambda rng, n: rng.random((n, 3)),
    "gaussian": lambda rng, n: rng.standard_normal((n, 3)),
}


def methods(k: int, threads: int) -> dict[str, Callable[[np.ndarray], Any]]:
    """Return what is timed, by name; each takes the points (N, 3)."""
    ours = {distance: KNNGraph(k, num_workers=threads, distance=distance) for distance in (False, True)}
    return {
        "ours": lambda points: ours[False](Data(pos=torch.from_numpy(points))),
        "ours, distances": lambda points: ours[True](Data(pos=torch.from_numpy(points))),
        "scipy": lambda points: cKDTree(points).query(points, k + 1, workers=threads),
        "sklearn": lambda points: NearestNeighbors(n_neighbors=k, n_jobs=threads).fit(points).kneighbors(),
    }


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    positive = bench_records.positive
    args = bench_records.parse(
        words,
        __doc__,
        n=(positive, 4096, "points of a cloud"),
        k=(positive, 32, "neighbours"),
        clouds=(positive, 10, "clouds of each kind"),
        repeats=(positive, 5, "counted passes on each cloud"),
        data=((*DATA, "all"), "all", "which clouds"),
        threads=(positive, 1, "CPU threads; 1 as in a loader's worker"),
        memory=(bool, False, "also the peak memory of one pass above what was there before"),
        quick=(bool, False, "fewer and smaller clouds: seconds"),
    )
    vars(args).update(QUICK if args.quick else {})
    if args.n <= args.k:
        raise ValueError(f"--n {args.n} must be more than --k {args.k}")
    return args


def measure(args: argparse.Namespace, data: str) -> list[Row]:
    """Return the rows of all methods on the clouds of one kind."""
    rng, builders = np.random.default_rng(0), methods(args.k, args.threads)
    clouds = [np.ascontiguousarray(DATA[data](rng, args.n), np.float32) for _ in range(args.clouds)]
    timed = [alternate({name: partial(build, one) for name, build in builders.items()}, args.repeats) for one in clouds]
    rows = []
    for name, build in builders.items():
        ms, cpu_ms = 1000 * np.array([passes for cloud in timed for passes in cloud[name]]).T
        row = {"data": data, "method": name, "n": args.n, "k": args.k, "threads": args.threads, "clouds": args.clouds}
        row |= {"repeats": args.repeats, "ms": float(np.median(ms)), "ms_min": float(ms.min())}
        row |= {"ms_max": float(ms.max()), "cpu_ms": float(np.median(cpu_ms)), "cpu_ms_min": float(cpu_ms.min())}
        if args.memory:
            with PeakMemory("cpu") as peak:
                build(clouds[0])
            row["memory_mib"] = peak.mib
        rows.append(row)
    floor = next(row["cpu_ms"] for row in rows if row["method"] == "scipy")
    return [row | {"vs_scipy": row["cpu_ms"] / floor} for row in rows]


def main(words: list[str]) -> int:
    """Measure, print, write; return the exit code."""
    args = parse(words)
    torch.set_num_threads(args.threads)
    rows = [row for data in (DATA if args.data == "all" else [args.data]) for row in measure(args, data)]
    return bench_records.save("knn_graphs", args, rows, COLUMNS)


if __name__ == "__main__":
    bench_records.run(main)
