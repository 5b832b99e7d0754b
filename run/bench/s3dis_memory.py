"""Memory of an epoch over S3DIS-like clouds: it must not grow with their number.

  python run/bench/s3dis_memory.py
  python run/bench/s3dis_memory.py --clouds 600,2400 --workers 2 --batch-size 8

Writes h5 files in S3DIS's raw format (blocks of 4,096 points as in `run/bench/knn_graphs.py`), prepares them as a run does,
and reads every batch of the three loaders once, without a model. Each size is measured in a process of its own; memory
is the largest resident size (VmHWM) of that process and of each loader worker, all of which are alive at the end. Pages
that they share count in each, so that the sum is more than the machine gives.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Not the folder of this file, which Python puts there: `attention` would then be a name that anyone can import.
sys.path[0] = str(Path(__file__).resolve().parents[2])

import h5py  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from graphgps_kmip.data import make_loaders, open_dataset  # noqa: E402
from graphgps_kmip.data.sets.s3dis import BLOCKS, LISTING, RECORDS, ROOMS  # noqa: E402
from run.bench import options  # noqa: E402
from run.bench.knn_graphs import block, table, write  # noqa: E402

Row = dict[str, Any]
COLUMNS = (
    "clouds workers batch_size raw_mib start_mib prepared_mib epoch_mib workers_mib sum_mib prepare_ms epoch_ms".split()
)
POINTS = 4096
AREAS = 6


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line.

    Raises:
        ValueError: too few clouds to fill every file and split.
    """
    parser = options.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--clouds", type=options.sizes, default="600,2400", help="numbers of clouds (default 600,2400; S3DIS: 23585)")
    add("--points", type=options.positive, default=POINTS, help="points of a cloud (default 4096)")
    add("--workers", type=options.positive, default=2, help="workers of each of the three loaders (default 2)")
    add("--batch-size", type=options.positive, default=8, help="clouds of a batch (default 8)")
    add("--folder", type=Path, default=None, help="where the clouds are written meanwhile (default: the temporary one)")
    add("--measure", type=Path, help=argparse.SUPPRESS)  # the process that measures one size
    add("--out", type=Path, default=options.RESULTS, metavar="FOLDER", help="where results go (default results/bench)")
    args = parser.parse_args(words)
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
    row = {"start_mib": peak_mib("self")}
    start = time.perf_counter()
    dataset = open_dataset(RECORDS[0], root)
    row |= {"prepare_ms": _ms_each(start, len(dataset)), "prepared_mib": peak_mib("self")}
    start, seen = time.perf_counter(), 0
    loaders = make_loaders(dataset, RECORDS[0].level, batch_size, seed=0, num_workers=workers)
    for loader in loaders:
        seen += sum(batch.num_graphs for batch in loader)
    if seen != len(dataset):
        raise ValueError(f"{seen} of {len(dataset)} clouds were read")
    row |= {"epoch_ms": _ms_each(start, seen), "epoch_mib": peak_mib("self")}
    in_workers = [peak_mib(child.pid) for child in multiprocessing.active_children()]
    return row | {"workers_mib": sum(in_workers), "sum_mib": row["epoch_mib"] + sum(in_workers)}


def peak_mib(process: int | str) -> float:
    """Return the largest resident size that a process had so far."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def _ms_each(start: float, count: int) -> float:
    return 1000 * (time.perf_counter() - start) / count


def main(words: list[str]) -> int:
    """Measure, print, write; return the exit code."""
    args = parse(words)
    if args.measure:
        print(json.dumps(measure(args.measure, args.workers, args.batch_size)))
        return 0
    rows = []
    for clouds in args.clouds:
        root = Path(tempfile.mkdtemp(dir=args.folder))
        try:
            write_raw(root / "S3DIS/raw", clouds, args.points)
            raw_mib = sum(path.stat().st_size for path in root.rglob("*.h5")) / 2**20
            # A fresh process: the largest resident size of this one would be that of writing, or of the size before.
            command = [sys.executable, __file__, "--measure", str(root)]
            command += ["--workers", str(args.workers), "--batch-size", str(args.batch_size)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                raise ValueError(f"{clouds} clouds could not be measured, see above")
        finally:
            shutil.rmtree(root)
        given = {"clouds": clouds, "workers": args.workers, "batch_size": args.batch_size, "raw_mib": raw_mib}
        rows.append(given | json.loads(done.stdout.splitlines()[-1]))
    paths = write("s3dis_memory", args, rows, COLUMNS)
    print("\n".join([table(rows, COLUMNS), "", *map(str, paths)]))
    return 0


if __name__ == "__main__":
    options.run(main)
