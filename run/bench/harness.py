"""Paired benchmark harness: each method in its own process, timed alternately with the others of its size.

Load by others then slows all methods alike. A benchmark module defines ``make(cell, small) -> (pass, facts)``, and
`measure` runs its cells.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import math
import multiprocessing
import os
import resource
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from graphgps_kmip.errors import is_out_of_memory

Row = dict[str, Any]
Pass = Callable[[], dict[str, float]]  # stage -> seconds, "total" among them
Facts = Callable[[], Row]

# Each process is forked off one that has imported everything and computed nothing: it starts fast, and without threads,
# caches or a CUDA context of another cell.
PROCESSES = multiprocessing.get_context("forkserver")
START_SECONDS = 300  # imports, and kernels that compile at their first use
GRACE_SECONDS = 5  # to free its resources before it is killed
FEW_REPEATS = 5  # when the limit allows no more
SLOW_PASS, SLOW_REPEATS = 20.0, 3  # a pass of more seconds is repeated three times only
ONCE = 300.0  # a pass of more seconds is measured once, without warm-up
QUICK, ENOUGH = 0.05, 0.02  # seconds: a quicker pass is repeated for this time
MAX_EXPONENT = 2.0  # of the growth in N: no method is worse than quadratic
MIB = 2**20
SHARE_OF_AVAILABLE = 0.8
CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


class NotSupported(Exception):
    """The method cannot do this cell; the message says why."""


class Bounds(NamedTuple):
    """Number of repeats of a cell, and the seconds that its passes may take together."""

    repeats: int
    limit: float


def measure(
    groups: list[list[Row]],
    bounds: Bounds,
    report: Callable[[list[Row]], None] = lambda _: None,
    environment: Callable[[Row], Mapping[str, str]] = lambda _: {},
) -> list[Row]:
    """Measure cells and return their rows in order.

    Cells of a group are timed alternately, smallest size first; each has "bench" (its module), "method", "data", "n",
    "threads", "device", and all that its ``make`` reads. `environment` gives the variables of a cell's process.
    """
    rows: list[Row] = []
    _start_server(groups[0][0])
    for cells in groups:
        running: list[MethodProcess] = []
        try:
            for cell in cells:
                reason = skip_reason(cell, rows, bounds)
                running.append(MethodProcess(cell, bounds, reason, {} if reason else environment(cell)))
            while any(method.goes_on for method in running):
                for method in running:
                    method.measure_pass()
        finally:
            for method in running:
                method.end()
        done = [method.row() for method in running]
        report(done)
        rows += done
    return rows


def _count_repeats(seconds: float, bounds: Bounds) -> int:
    if seconds > ONCE:
        return 0
    if seconds > SLOW_PASS:
        return min(bounds.repeats, SLOW_REPEATS)
    fits = (1 + bounds.repeats) * seconds <= bounds.limit
    return bounds.repeats if fits else min(bounds.repeats, FEW_REPEATS)


def skip_reason(cell: Row, earlier: list[Row], bounds: Bounds) -> str | None:
    """Say why a cell is not started: it failed at a smaller size, or would take longer than the limit."""
    shared = [key for key in ("method", "data", "encoding") if key in cell]
    same = [row for row in earlier if all(row[key] == cell[key] for key in shared)]
    if not same:
        return None
    last = same[-1]
    if last["status"].startswith(("out of memory", "time limit", "skipped")):
        what = last["status"].partition(" (")[0]
        return last["status"] if what == "skipped" else f"skipped ({what} at n = {last['n']})"
    measured = [(row["n"], row["total_ms"] / 1000) for row in same if row["status"] == "ok"][-2:]
    if not measured:
        return None
    (n0, s0), (n1, s1) = measured[0], measured[-1]
    slope = MAX_EXPONENT if n0 == n1 else min(MAX_EXPONENT, max(1.0, math.log(s1 / s0) / math.log(n1 / n0)))
    seconds = s1 * (cell["n"] / n1) ** slope
    whole = seconds * (1 + _count_repeats(seconds, bounds))
    return f"skipped (estimated {whole:.0f} s)" if whole > bounds.limit else None


def _start_server(cell: Row) -> None:
    before = dict(os.environ)
    os.environ |= {"OMP_NUM_THREADS": str(cell["threads"]), "PYKEOPS_VERBOSE": "0"}  # read when libraries load
    os.environ["PYTHONWARNINGS"] = "ignore::RuntimeWarning:runpy"  # each process loads the main module once more
    # Python 3.11 does not pass the search path on
    root = str(Path(__file__).resolve().parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, before.get("PYTHONPATH"))))
    PROCESSES.set_forkserver_preload([f"{__package__}.{cell['bench']}"])
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


class MethodProcess:
    """One cell: its process, the passes measured so far, and how it ended."""

    def __init__(self, cell: Row, bounds: Bounds, skip: str | None, environment: Mapping[str, str]) -> None:
        self.cell, self.bounds = cell, bounds
        self.passes: list[dict[str, float]] = []
        self.facts: Row = {}
        self.process = None
        self.status, self.spent, self.num_passes = skip or "ok", 0.0, 0
        if skip is None:
            self._start(environment)

    @property
    def goes_on(self) -> bool:
        """Whether there is another pass to measure."""
        return self.status == "ok" and len(self.passes) < self.num_passes

    def measure_pass(self) -> None:
        """Measure a pass, if there is another one."""
        if not self.goes_on:
            return
        with contextlib.suppress(OSError):  # it has died, for the reason in the answer
            self.connection.send(True)
        answer = self._receive(self.bounds.limit - self.spent)
        if answer is not None:
            self.passes.append(answer["seconds"])
        if not self.goes_on:
            self.end()

    def end(self) -> None:
        """Stop the process, if one runs."""
        if self.process is not None:
            with contextlib.suppress(OSError):  # it has died
                self.connection.send(False)
                self.process.join(GRACE_SECONDS if self.status == "ok" else 0)
            self.process.kill()
            self.process.join()
            self.connection.close()
            self.errors.unlink(missing_ok=True)
            self.process = None

    def row(self) -> Row:
        """Return the cell with its status and the statistics of its passes in milliseconds."""
        row = self.cell | {"status": self.status, "repeats": len(self.passes)} | self.facts
        if self.status != "ok":
            return row
        for stage in self.passes[0]:
            values = [1000 * seconds[stage] for seconds in self.passes]
            row |= {f"{stage}_ms": statistics.median(values), f"{stage}_passes_ms": values}
        values = row["total_passes_ms"]
        return row | {"total_min_ms": min(values), "total_max_ms": max(values)}

    def _start(self, environment: Mapping[str, str]) -> None:
        with tempfile.NamedTemporaryFile(prefix="bench-", suffix=".txt", delete=False) as file:
            self.errors = Path(file.name)
        self.connection, other = PROCESSES.Pipe()
        # not a daemon: data sets and encodings start processes of their own
        self.process = PROCESSES.Process(target=_serve, args=(self.cell, other, self.errors, dict(environment)))
        self.process.start()
        other.close()  # so that the end of the process is the end of the pipe
        if self._receive(START_SECONDS) is None:
            return
        self.spent = 0.0  # importing and compiling is no pass
        answer = self._receive(self.bounds.limit)
        if answer is not None:
            first = answer.pop("seconds")
            self.facts = {key: value for key, value in answer.items() if key != "status"}
            self.facts["first_ms"] = 1000 * first["total"]
            self.num_passes = _count_repeats(first["total"], self.bounds)
            if not self.num_passes:
                self.passes, self.num_passes = [first], 1
                self.end()

    def _receive(self, timeout: float) -> Row | None:
        start = time.perf_counter()
        if not self.connection.poll(max(0.0, timeout)):
            if len(self.passes) < SLOW_REPEATS:  # else they are enough, and the row has their number
                self.status = "time limit"
            self.num_passes = len(self.passes)
        else:
            try:
                answer = self.connection.recv()
            except (EOFError, OSError):
                answer = {"status": self._find_cause()}
            self.spent += time.perf_counter() - start
            if answer["status"] in ("warm", "ready", "ok"):
                return answer
            self.status = answer["status"]
        self.end()
        return None

    def _find_cause(self) -> str:
        self.process.join()
        lines = self.errors.read_text(errors="replace").strip().splitlines()
        last, code = lines[-1].strip() if lines else "", self.process.exitcode
        if code == -signal.SIGKILL or "bad_alloc" in last:
            return "out of memory (the process was killed)"
        return f"error: the process ended with code {code}: {last[:200]}"


def _serve(cell: Row, connection: Connection, errors: Path, environment: Mapping[str, str]) -> None:
    """Prepare a cell ("warm": compiled; "ready": after the first pass) and measure a pass for each message ("ok")."""
    os.environ.update(environment)
    with errors.open("w") as file:  # for the output of libraries
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        torch.set_num_threads(cell["threads"])
        make = importlib.import_module(f"{__package__}.{cell['bench']}").make
        make(cell, True)[0]()
        connection.send({"status": "warm"})
        limit_memory(cell["device"])
        run, facts = make(cell, False)
        with PeakMemory(cell["device"]) as peak:
            seconds = run()
        connection.send({"status": "ready", "seconds": seconds, "memory_mib": peak.mib, **facts()})
        while connection.recv():
            connection.send({"status": "ok", "seconds": _repeat_quick(run, seconds["total"])})
    except BaseException as error:  # any error becomes a row
        connection.send({"status": describe(error)})


def _repeat_quick(run: Pass, expected: float) -> dict[str, float]:
    """Return the seconds of a pass by stage, of a quick one after a warm-up the median over 20 ms."""
    if expected > QUICK:
        return run()
    run()
    start, done = time.perf_counter(), []
    while not done or time.perf_counter() - start < ENOUGH:
        done.append(run())
    return {stage: statistics.median(seconds[stage] for seconds in done) for stage in done[0]}


def describe(error: BaseException) -> str:
    """Return the status of a row that an error ends."""
    text = " ".join(str(error).split()) or type(error).__name__
    if is_out_of_memory(error) or "bad_alloc" in text:
        return "out of memory"
    # torch's message when no kernel of a kind takes these inputs
    if isinstance(error, NotSupported) or "no available kernel" in text.lower():
        return f"not supported: {text[:200]}"
    return f"error: {type(error).__name__}: {text[:200]}"


class Stopwatch:
    """Seconds since the last lap, after all that was queued on the device is done."""

    def __init__(self, device: str) -> None:
        self.device, self.last = device, 0.0
        self.lap()

    def lap(self) -> float:
        """Return the seconds since the last lap and start a new one."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        before, self.last = self.last, time.perf_counter()
        return self.last - before


class PeakMemory:
    """``with PeakMemory(device) as peak: ...``; then ``peak.mib`` above the memory before, None if unknown."""

    def __init__(self, device: str) -> None:
        self.device, self.mib, self.before = device, None, None

    def __enter__(self) -> PeakMemory:
        gc.collect()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
            return self
        with contextlib.suppress(OSError, AttributeError):  # not glibc
            ctypes.CDLL(None).malloc_trim(0)  # a pass that found freed pages would look smaller than it is
        with contextlib.suppress(OSError):
            CLEAR_REFS.write_text("5")  # resets VmHWM, the largest resident size so far
            self.before = _kib(STATUS, "VmRSS") / 1024
        return self

    def __exit__(self, *error: object) -> None:
        if self.device == "cuda":
            self.mib = (torch.cuda.max_memory_allocated() - self.before) / MIB
        elif self.before is not None:
            self.mib = max(0.0, _kib(STATUS, "VmHWM") / 1024 - self.before)


def limit_memory(device: str) -> None:
    """Let allocations beyond four fifths of the available memory fail, on a CPU: CUDA maps more address space."""
    if device == "cuda" or not CLEAR_REFS.exists():
        return
    available = _kib(Path("/proc/meminfo"), "MemAvailable")
    limit = int(1024 * (_kib(STATUS, "VmSize") + SHARE_OF_AVAILABLE * available))
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _kib(file: Path, key: str) -> int:
    return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(f"{key}:"))
