"""Start-up benchmark: processor and wall seconds of new processes that import the package or print what commands print.

  python -m run.bench.startup
  python -m run.bench.startup --repeats 9 --only 'import*,main.py --help' --before ../another-checkout

Each pass starts one new process after the other, so that load on the machine affects all alike. The first pass is not
counted: it compiles bytecode and fills the file cache. "cpu_ratio" divides the median of processor seconds by that of
importing the library in "against", measured in the same passes: below 1, a start takes less than that library alone.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from . import bench_records
from .harness import Row

COLUMNS = "start code cpu_s wall_s against cpu_ratio status".split()
ROOT = Path(__file__).resolve().parents[2]
TORCH, PYG = "import torch", "import torch_geometric"
DIGITS = "configs/quickstart/digits-kmip.yaml"
# What is started -> import that it is divided by.
STARTS = {
    TORCH: TORCH,
    "from graphgps_kmip.attention import KMIPAttention": TORCH,
    PYG: PYG,
    "import torch_geometric.graphgym": PYG,
    "import graphgps_kmip": PYG,
    "import graphgps_kmip.gym": PYG,
    "main.py --help": PYG,
    "main.py --cfg missing.yaml": PYG,
    "main.py --list": PYG,
    f"main.py --cfg {DIGITS} --dry-run": PYG,
    "run/compare.py --help": PYG,
    "run/reproduce.py --help": PYG,
    "run/reproduce.py list": PYG,
}
EXIT_CODES = {"main.py --cfg missing.yaml": 2}


class Code(NamedTuple):
    """A checkout, and what it is called in the table."""

    name: str
    root: Path


class Seconds(NamedTuple):
    """What one process took: of the processor (its own and the system's), and by the clock."""

    cpu: float
    wall: float


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    args = bench_records.parse(
        words,
        __doc__,
        only=(str, "*", "comma-separated patterns of what is started"),
        repeats=(bench_records.positive, 5, "counted passes"),
        before=(Path, None, "another checkout, which is measured in the same passes"),
        threads=(bench_records.positive, 1, "OMP_NUM_THREADS of the processes"),
    )
    if args.before is not None and not (args.before / "main.py").is_file():
        raise ValueError(f"--before {args.before}: no checkout, it has no main.py")
    patterns = args.only.split(",")
    args.starts = [start for start in STARTS if any(fnmatch.fnmatchcase(start, one) for one in patterns)]
    if not args.starts:
        raise ValueError(f"--only {args.only}: fits nothing, there are {', '.join(STARTS)}")
    return args


def command(start: str) -> list[str]:
    """Return the words that start a process: a script with its arguments, or a statement."""
    return [sys.executable, "-W", "ignore", *(start.split() if ".py" in start.split()[0] else ["-c", start])]


def timed(start: str, root: Path, environment: Mapping[str, str]) -> tuple[Seconds, str]:
    """Start a process, wait for its end, and return its seconds, with what was wrong with its exit code or "ok"."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        command(start), cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)  # waited for already
    right = process.returncode == EXIT_CODES.get(start, 0)
    return Seconds(usage.ru_utime + usage.ru_stime, wall), "ok" if right else f"error: exit code {process.returncode}"


def measure(starts: list[str], codes: list[Code], repeats: int, threads: int) -> list[Row]:
    """Return a row for each start and code; what rows are divided by is measured too."""
    needed = list(dict.fromkeys([*(STARTS[start] for start in starts), *starts]))
    cells = [(start, code) for start in needed for code in (codes if start not in STARTS.values() else codes[:1])]
    passes: dict[tuple[str, Code], list[Seconds]] = {cell: [] for cell in cells}
    status: dict[tuple[str, Code], str] = {}
    for number in range(repeats + 1):
        for cell in cells:
            seconds, status[cell] = timed(cell[0], cell[1].root, _environment(cell[1].root, threads))
            passes[cell] += [seconds] * (number > 0)
    cpu = {cell: statistics.median(one.cpu for one in taken) for cell, taken in passes.items()}
    return [
        {
            "start": start,
            "code": code.name if start not in STARTS.values() else "",
            "cpu_s": cpu[start, code],
            "wall_s": statistics.median(one.wall for one in taken),
            "cpu_passes": [one.cpu for one in taken],
            "against": STARTS[start].removeprefix("import "),
            "cpu_ratio": cpu[start, code] / cpu[STARTS[start], codes[0]],
            "status": status[start, code],
        }
        for (start, code), taken in passes.items()
    ]


def _environment(root: Path, threads: int) -> dict[str, str]:
    """Return that of the processes: bytecode is stored, as on a user's machine, and the package is that of ``root``."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": str(threads)}


def main(words: list[str]) -> int:
    """Measure, print and write; 1 if a process did not end as it should."""
    args = parse(words)
    codes = [Code("this", ROOT), *([Code("before", args.before.resolve())] if args.before else [])]
    rows = measure(args.starts, codes, args.repeats, args.threads)
    bench_records.save("startup", args, rows, COLUMNS)
    return int(any(row["status"] != "ok" for row in rows))


if __name__ == "__main__":
    bench_records.run(main)
