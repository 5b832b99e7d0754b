"""S3DIS memory benchmark: the memory of an epoch over S3DIS-like clouds, which must not grow with their number.

  python -m run.bench.s3dis_memory
  python -m run.bench.s3dis_memory --clouds 600,2400 --workers 2 --batch-size 8

Writes h5 files in S3DIS's raw format (blocks of 4,096 points as in knn_graphs.py), prepares them as a run does, and
reads every batch of the three loaders once, without a model. Each size is measured in a process of its own; memory is
the largest resident size (VmHWM) of that process and of each loader worker, all of which are alive at the end. Pages
that they share count in each, so that the sum is more than the machine gives.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import torch

from graphgps_kmip.data import make_loaders, open_dataset
from graphgps_kmip.data.sets.s3dis import BLOCKS, LISTING, RECORDS, ROOMS

from . import bench_records
from .harness import MIB, Row, resident_mib
from .knn_graphs import block

COLUMNS = "clouds workers batch_size raw_mib start_mib prepared_mib epoch_mib workers_mib sum_mib prepare_ms epoch_ms"
COLUMNS = COLUMNS.split()
POINTS, AREAS = 4096, 6


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    positive = bench_records.positive
    args = bench_records.parse(
        words,
        __doc__,
        clouds=(bench_records.sizes, "600,2400", "numbers of clouds; S3DIS has 23585"),
        points=(positive, POINTS, "points of a cloud"),
        workers=(positive, 2, "workers of each of the three loaders"),
        batch_size=(positive, 8, "clouds of a batch"),
        folder=(Path, None, "where the clouds are written meanwhile instead of the temporary directory"),
    )
    if min(args.clouds) < len(BLOCKS):
        raise ValueError(f"--clouds must be at least {len(BLOCKS)}, one for each file, got {min(args.clouds)}")
    return args


def write_raw(raw: Path, clouds: int, points: int) -> None:
    """Write clouds, their labels and rooms as S3DIS's archive has them; every sixth block is of area 6."""
    raw.mkdir(parents=True)
    (raw / LISTING).write_text("".join(f"indoor3d_sem_seg_hdf5_data/{name}\n" for name in BLOCKS))
    (raw / ROOMS).write_text("".join(f"Area_{1 + number % AREAS}_room_1\n" for number in range(clouds)))
    rng = np.random.default_rng(0)
    for name, share in zip(BLOCKS, np.array_split(np.arange(clouds), len(BLOCKS)), strict=True):
        with h5py.File(raw / name, "w") as file:
            data = file.create_dataset("data", (len(share), points, 9), np.float32)
            label = file.create_dataset("label", (len(share), points), np.uint8)
            for row in range(len(share)):
                pos = block(rng, points)
                data[row] = np.concatenate([pos, rng.random((points, 3)), pos / [1, 1, 3]], axis=1)
                label[row] = rng.integers(0, 13, points)


def measure(root: Path, workers: int, batch_size: int) -> Row:
    """Prepare the clouds below a folder and read each once; return times (seconds) and memory (MiB)."""
    torch.set_num_threads(1)
    row = {"start_mib": resident_mib("VmHWM")}
    start = time.perf_counter()
    dataset = open_dataset(RECORDS[0], root)
    row |= {"prepare_ms": _ms_each(start, len(dataset)), "prepared_mib": resident_mib("VmHWM")}
    start, seen = time.perf_counter(), 0
    loaders = make_loaders(dataset, RECORDS[0].level, batch_size, seed=0, num_workers=workers)
    for loader in loaders:
        seen += sum(batch.num_graphs for batch in loader)
    if seen != len(dataset):
        raise ValueError(f"{seen} of {len(dataset)} clouds were read")
    row |= {"epoch_ms": _ms_each(start, seen), "epoch_mib": resident_mib("VmHWM")}
    in_workers = [resident_mib("VmHWM", child.pid) for child in multiprocessing.active_children()]
    return row | {"workers_mib": sum(in_workers), "sum_mib": row["epoch_mib"] + sum(in_workers)}


def _ms_each(start: float, count: int) -> float:
    return 1000 * (time.perf_counter() - start) / count


def main(words: list[str]) -> int:
    """Measure, print, write; return the exit code."""
    args = parse(words)
    rows = []
    for clouds in args.clouds:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            write_raw(Path(folder, "S3DIS/raw"), clouds, args.points)
            raw_mib = sum(path.stat().st_size for path in Path(folder).rglob("*.h5")) / MIB
            # A fresh process: the largest resident size of this one would be that of writing, or of the size before.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                found = process.submit(measure, Path(folder), args.workers, args.batch_size).result()
        given = {"clouds": clouds, "workers": args.workers, "batch_size": args.batch_size, "raw_mib": raw_mib}
        rows.append(given | found)
    return bench_records.save("s3dis_memory", args, rows, COLUMNS)


if __name__ == "__main__":
    bench_records.run(main)
