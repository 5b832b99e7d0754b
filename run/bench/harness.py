"""Paired benchmark harness: each method in a process of its own, timed alternately with the others of its size.

Load that others put on the machine then hits all methods alike, where methods measured one after the other would each
meet another machine. A benchmark module defines ``make(cell, small) -> (pass, facts)``; `measure` runs its cells.
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

# Each process is forked off one that has imported everything and computed nothing: it starts in no time, and starts
# without threads, caches or a CUDA context of another cell.
PROCESSES = multiprocessing.get_context("forkserver")
START_SECONDS = 300  # imports, and kernels that compile at their first use
GRACE_SECONDS = 5  # to give back what it holds, before it is killed
FEW_REPEATS = 5  # when the limit allows no more
SLOW_PASS, SLOW_REPEATS = 20.0, 3  # a pass of more seconds is repeated three times only
ONCE = 300.0  # a longer pass is measured once: its first one counts, for what it warms up is nothing beside it
QUICK, ENOUGH = 0.05, 0.02  # seconds: a quicker pass is repeated for so long each time
STEEPEST = 2.0  # exponent of the growth in N: no method is worse than quadratic
MIB = 2**20
SHARE_OF_AVAILABLE = 0.8
CLEAR_REFS = Path("/proc/self/clear_refs")


class NotSupported(Exception):
    """The method cannot do this cell; the message says why."""


class Bounds(NamedTuple):
    """How often a cell is repeated, and how many seconds its passes may take together."""

    repeats: int
    limit: float


def measure(
    groups: list[list[Row]],
    bounds: Bounds,
    report: Callable[[list[Row]], None] = lambda _: None,
    environment: Callable[[Row], Mapping[str, str]] = lambda _: {},
) -> list[Row]:
    """Measure cells and return their rows in order.

    Args:
        groups: the cells that are timed alternately, smallest size first. A cell names its module in this package
            ("bench"), "method", "data", "n", "threads", "device", and whatever else its ``make`` reads.
        bounds: repeats and time limit of a cell.
        report: called with the rows of each group when they are there.
        environment: variables that a cell's process needs from its start on.
    """
    rows: list[Row] = []
    _start_server(groups[0][0])
    for cells in groups:
        running: list[MethodProcess] = []
        try:
            for cell in cells:
                reason = skip_reason(cell, rows, bounds)
                running.append(MethodProcess(cell, bounds, reason, {} if reason else environment(cell)))
            while any(one.goes_on for one in running):
                for one in running:
                    one.once()
        finally:
            for one in running:
                one.end()
        done = [one.row() for one in running]
        report(done)
        rows += done
    return rows


def _repeats_for(seconds: float, bounds: Bounds) -> int:
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
    known = [(row["n"], row["total_ms"] / 1000) for row in same if row["status"] == "ok"][-2:]
    if not known:
        return None
    (n0, s0), (n1, s1) = known[0], known[-1]
    slope = STEEPEST if n0 == n1 else min(STEEPEST, max(1.0, math.log(s1 / s0) / math.log(n1 / n0)))
    one = s1 * (cell["n"] / n1) ** slope
    whole = one * (1 + _repeats_for(one, bounds))
    return f"skipped (estimated {whole:.0f} s)" if whole > bounds.limit else None


def _start_server(cell: Row) -> None:
    """Start the process that all others are forked off, with everything imported that they need."""
    before = dict(os.environ)
    os.environ |= {"OMP_NUM_THREADS": str(cell["threads"]), "PYKEOPS_VERBOSE": "0"}  # read when libraries load
    os.environ["PYTHONWARNINGS"] = "ignore::RuntimeWarning:runpy"  # each process loads the main module once more
    # Python 3.11 does not hand the search path on to it: this is how it finds the modules
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
        self.status, self.spent, self.wanted = skip or "ok", 0.0, 0
        if skip is None:
            self._start(environment)

    @property
    def goes_on(self) -> bool:
        """Whether another pass is wanted."""
        return self.status == "ok" and len(self.passes) < self.wanted

    def once(self) -> None:
        """Measure one pass, if another is wanted."""
        if not self.goes_on:
            return
        with contextlib.suppress(OSError):  # it has died; the answer says of what
            self.connection.send(True)
        answer = self._answer(self.bounds.limit - self.spent)
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
        if self._answer(START_SECONDS) is None:
            return
        self.spent = 0.0  # importing and compiling is no pass
        answer = self._answer(self.bounds.limit)
        if answer is not None:
            first = answer.pop("seconds")
            self.facts = {key: value for key, value in answer.items() if key != "status"}
            self.facts["first_ms"] = 1000 * first["total"]
            self.wanted = _repeats_for(first["total"], self.bounds)
            if not self.wanted:
                self.passes, self.wanted = [first], 1
                self.end()

    def _answer(self, patience: float) -> Row | None:
        """Return the next answer if it is a good one, else None; then the status tells what happened."""
        start = time.perf_counter()
        if not self.connection.poll(max(0.0, patience)):
            if len(self.passes) < SLOW_REPEATS:  # else they are enough, and the row says how many there are
                self.status = "time limit"
            self.wanted = len(self.passes)
        else:
            try:
                answer = self.connection.recv()
            except (EOFError, OSError):
                answer = {"status": self._cause_of_death()}
            self.spent += time.perf_counter() - start
            if answer["status"] in ("warm", "ready", "ok"):
                return answer
            self.status = answer["status"]
        self.end()
        return None

    def _cause_of_death(self) -> str:
        self.process.join()
        lines = self.errors.read_text(errors="replace").strip().splitlines()
        last, code = lines[-1].strip() if lines else "", self.process.exitcode
        if code == -signal.SIGKILL or "bad_alloc" in last:  # the kernel's way to end a process that took too much
            return "out of memory (the process was killed)"
        return f"error: the process ended with code {code}: {last[:200]}"


def _serve(cell: Row, connection: Connection, errors: Path, environment: Mapping[str, str]) -> None:
    """Prepare a cell and measure a pass for each message, until the process is ended.

    Status "warm": libraries are loaded and kernels compiled; "ready": after the first pass at full size; "ok": after
    each further pass; any other is the end.
    """
    os.environ.update(environment)
    with errors.open("w") as file:  # what libraries print belongs to nobody's table
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        torch.set_num_threads(cell["threads"])
        make = importlib.import_module(f"{__package__}.{cell['bench']}").make
        make(cell, True)[0]()
        connection.send({"status": "warm"})
        limit_memory(cell["device"], cell.get("memory_gib"))
        run, facts = make(cell, False)
        with PeakMemory(cell["device"]) as peak:
            seconds = run()
        connection.send({"status": "ready", "seconds": seconds, "memory_mib": peak.mib, **facts()})
        while connection.recv():
            connection.send({"status": "ok", "seconds": _repeated(run, seconds["total"])})
    except BaseException as error:  # whatever it is, it becomes a row
        connection.send({"status": describe(error)})


def _repeated(run: Pass, expected: float) -> dict[str, float]:
    """Return the seconds of one pass by stage; of a quick one the median of several.

    While the other methods were measured, this process' threads slept and its data left the caches: a quick pass is
    made once to wake them, uncounted, and then for 20 ms.
    """
    if expected > QUICK:
        return run()
    run()
    start, done = time.perf_counter(), []
    while not done or time.perf_counter() - start < ENOUGH:
        done.append(run())
    return {stage: statistics.median(one[stage] for one in done) for stage in done[0]}


def describe(error: BaseException) -> str:
    """Return the status of a row that an error ends."""
    text = " ".join(str(error).split()) or type(error).__name__
    if is_out_of_memory(error) or "bad_alloc" in text:
        return "out of memory"
    # torch's own words when no kernel of the kind asked for takes these inputs
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
    """``with PeakMemory(device) as peak: ...``; then ``peak.mib`` above what was there, None where that is not known.

    On CUDA what torch allocated (KeOps' own memory is not in it), on a CPU the resident memory of the process.
    """

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
            self.before = resident_mib("VmRSS")
        return self

    def __exit__(self, *error: object) -> None:
        if self.device == "cuda":
            self.mib = (torch.cuda.max_memory_allocated() - self.before) / MIB
        elif self.before is not None:
            self.mib = max(0.0, resident_mib("VmHWM") - self.before)


def resident_mib(key: str, process: int | str = "self") -> float:
    """Return the memory of a process: VmRSS (resident now), VmHWM (largest so far) or VmSize (address space)."""
    return _kib(Path(f"/proc/{process}/status"), key) / 1024


def limit_memory(device: str, gib: float | None = None) -> None:
    """Let allocations beyond ``gib`` (default: four fifths of what is available) fail, instead of the machine.

    Address space is what can be bounded; CUDA maps far more of it than it uses, so there the GPU's own limit serves.
    """
    if device == "cuda" or not CLEAR_REFS.exists():
        return
    more = SHARE_OF_AVAILABLE * _kib(Path("/proc/meminfo"), "MemAvailable") * 1024 if gib is None else gib * 2**30
    limit = int(resident_mib("VmSize") * MIB + more)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _kib(file: Path, key: str) -> int:
    return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(f"{key}:"))
