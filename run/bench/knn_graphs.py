"""k-nearest-neighbour graphs of point clouds: ours (ties by rule, edges) against what scipy and scikit-learn offer.

  python run/bench/knn_graphs.py
  python run/bench/knn_graphs.py --quick
  python run/bench/knn_graphs.py --n 500000 --k 8 --clouds 1 --repeats 3 --memory

Clouds: indoor blocks (1 m x 1 m x 3 m of walls, floor, ceiling and furniture, to the millimetre, a fifth of the points
drawn twice, as S3DIS cuts them), meshes (vertices that several faces repeat), uniform and Gaussian ones, float32.
Contestants: "ours" builds the whole graph (exactly k in-edges, ties by distance, coordinates, index), "ours, distances"
adds the edge lengths; "scipy" is cKDTree(points).query(points, k + 1), the floor: no tie rule, the point itself not
always first, no edges; "sklearn" is NearestNeighbors(n_neighbors=k).fit(points).kneighbors(). They take turns on each
cloud; the first turn is not counted. Times are milliseconds a cloud, on the clock ("ms") and of the CPU ("cpu_ms", all
threads together), which says more where a machine is shared; "vs_scipy" compares the latter.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

# Not the folder of this file, which Python puts there: `attention` would then be a name that anyone can import.
sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np  # noqa: E402
import torch  # noqa: E402
from scipy.spatial import cKDTree  # noqa: E402
from sklearn.neighbors import NearestNeighbors  # noqa: E402
from torch_geometric.data import Data  # noqa: E402

from graphgps_kmip.common.atomic_write import replace_file  # noqa: E402
from graphgps_kmip.encoding.knn import KNNGraph  # noqa: E402
from graphgps_kmip.train.run_recording import code_version, hardware, package_versions  # noqa: E402
from run.bench import options  # noqa: E402
from run.bench.memory import PeakMemory  # noqa: E402

Row = dict[str, Any]
COLUMNS = "data contestant n k threads clouds repeats ms ms_min ms_max cpu_ms cpu_ms_min vs_scipy memory_mib".split()
QUICK = {"n": 1024, "clouds": 2, "repeats": 2}
REPEATED = 0.2  # share of the points that are drawn twice


def block(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return an indoor block: two walls, floor, ceiling, a table top and a box, to the millimetre, with duplicates."""
    u, v, surface = rng.random(n), rng.random(n), rng.integers(0, 6, n)
    flat = [np.zeros(n), np.full(n, 3.0), np.full(n, 0.75), 0.4 + 0.5 * rng.random(n)]  # heights of what lies
    points = np.choose(
        surface,
        [
            [u, v, flat[0]],
            [u, v, flat[1]],
            [0.2 + 0.6 * u, 0.2 + 0.6 * v, flat[2]],
            [0.3 + 0.2 * u, 0.3 + 0.2 * v, flat[3]],
            [np.zeros(n), u, 3 * v],
            [u, np.ones(n), 3 * v],
        ],
    ).T.round(3)
    return _with_duplicates(rng, points, REPEATED)


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


def contestants(k: int, threads: int) -> dict[str, Callable[[np.ndarray], Any]]:
    """Return what is timed, by name; each takes the points (N, 3)."""
    ours = {distance: KNNGraph(k, num_workers=threads, distance=distance) for distance in (False, True)}
    return {
        "ours": lambda points: ours[False](Data(pos=torch.from_numpy(points))),
        "ours, distances": lambda points: ours[True](Data(pos=torch.from_numpy(points))),
        "scipy": lambda points: cKDTree(points).query(points, k + 1, workers=threads),
        "sklearn": lambda points: NearestNeighbors(n_neighbors=k, n_jobs=threads).fit(points).kneighbors(),
    }


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line.

    Raises:
        ValueError: there are not more points than neighbours.
    """
    parser = options.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--n", type=options.positive, default=4096, help="points of a cloud (default 4096)")
    add("--k", type=options.positive, default=32, help="neighbours (default 32)")
    add("--clouds", type=options.positive, default=10, help="clouds of each kind (default 10)")
    add("--repeats", type=options.positive, default=5, help="counted turns on each cloud (default 5)")
    add("--data", choices=(*DATA, "all"), default="all", help="which clouds (default all)")
    add("--threads", type=options.positive, default=1, help="CPU threads (default 1, as in a loader's worker)")
    add("--memory", action="store_true", help="also the peak memory of one turn above what was there before")
    add("--quick", action="store_true", help="fewer and smaller clouds: seconds")
    add("--out", type=Path, default=options.RESULTS, metavar="FOLDER", help="where to write (default results/bench)")
    args = parser.parse_args(words)
    vars(args).update(QUICK if args.quick else {})
    if args.n <= args.k:
        raise ValueError(f"--n {args.n} must be more than --k {args.k}")
    return args


def measure(args: argparse.Namespace, data: str) -> list[Row]:
    """Time all contestants on the clouds of one kind."""
    rng = np.random.default_rng(0)
    who = contestants(args.k, args.threads)
    passes: dict[str, list[tuple[float, float]]] = {name: [] for name in who}
    clouds = [np.ascontiguousarray(DATA[data](rng, args.n), np.float32) for _ in range(args.clouds)]
    for turn in range(args.repeats + 1):
        for points in clouds:
            for name, build in who.items():
                start = time.perf_counter(), time.process_time()
                build(points)
                if turn:
                    passes[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    rows = []
    for name, seconds in passes.items():
        ms, cpu_ms = (1000 * np.array(seconds)).T
        row = {"data": data, "contestant": name, "n": args.n, "k": args.k, "threads": args.threads}
        row |= {"clouds": args.clouds, "repeats": args.repeats}
        row |= {"ms": float(np.median(ms)), "ms_min": float(ms.min()), "ms_max": float(ms.max())}
        row |= {"cpu_ms": float(np.median(cpu_ms)), "cpu_ms_min": float(cpu_ms.min())}
        if args.memory:
            with PeakMemory("cpu") as peak:
                who[name](clouds[0])
            row["memory_mib"] = peak.mib
        rows.append(row)
    floor = next(row["cpu_ms"] for row in rows if row["contestant"] == "scipy")
    return [row | {"vs_scipy": row["cpu_ms"] / floor} for row in rows]


def table(rows: list[Row], columns: list[str]) -> str:
    """Return rows as aligned text; columns that no row has are left out."""
    columns = [name for name in columns if any(row.get(name) is not None for row in rows)]
    cells = [[_text(row.get(name)) for name in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in [columns, *cells]
    )


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def write(bench: str, args: argparse.Namespace, rows: list[Row], columns: list[str]) -> list[Path]:
    """Write JSON and CSV, whose name is their provenance, and return their paths."""
    now = datetime.now().astimezone()
    record = {"bench": bench, "created": now.isoformat(timespec="seconds"), "code": code_version()}
    record["options"] = {key: value for key, value in vars(args).items() if key not in ("out", "folder", "measure")}
    record["machine"] = hardware(torch.device("cpu")) | {"packages": package_versions()}
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{bench}-{now:%Y%m%d-%H%M%S}-{record['code']}.json"
    replace_file(path, (json.dumps(record | {"rows": rows}, indent=1) + "\n").encode())
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(path.with_suffix(".csv"), text.getvalue().encode())
    return [path, path.with_suffix(".csv")]


def main(words: list[str]) -> int:
    """Measure, print, write; return the exit code."""
    args = parse(words)
    torch.set_num_threads(args.threads)
    rows = [row for data in (DATA if args.data == "all" else [args.data]) for row in measure(args, data)]
    paths = write("knn", args, rows, COLUMNS)
    print("\n".join([table(rows, COLUMNS), "", *map(str, paths)]))
    return 0


if __name__ == "__main__":
    options.run(main)
