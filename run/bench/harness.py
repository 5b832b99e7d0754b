"""One cell of a benchmark in a process of its own, seen from outside: its turns, its time limit, how it ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from run.bench.worker import serve

Row = dict[str, Any]

# Each process is forked off one that has imported everything and computed nothing: it starts in no time, and starts
# without threads, caches or a CUDA context of another cell.
PROCESSES = multiprocessing.get_context("forkserver")
ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 300  # imports, and kernels that compile at their first use
FEW_REPEATS = 5  # when the limit allows no more
SLOW_PASS, SLOW_REPEATS = 20.0, 3  # a pass of more seconds is repeated three times only


@dataclass(frozen=True)
class Bounds:
    """How often a cell is repeated, and how many seconds its passes may take together."""

    repeats: int
    limit: float


def start_server(threads: int) -> None:
    """Start the process that all others are forked off, with everything imported that they need."""
    before = dict(os.environ)
    os.environ |= {"OMP_NUM_THREADS": str(threads), "PYKEOPS_VERBOSE": "0"}  # read when libraries load
    # Python 3.11 does not hand the search path on to it: this is how it finds the modules
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), before.get("PYTHONPATH"))))
    PROCESSES.set_forkserver_preload(["run.bench.worker", "run.bench.figure", "run.bench.options"])
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


def repeats_for(seconds: float, bounds: Bounds) -> int:
    """Say how many turns a pass of so many seconds gets."""
    if seconds > SLOW_PASS:
        return min(bounds.repeats, SLOW_REPEATS)
    fits = (1 + bounds.repeats) * seconds <= bounds.limit
    return bounds.repeats if fits else min(bounds.repeats, FEW_REPEATS)


class Turns:
    """One cell: its process, the turns measured so far, and how it ended."""

    def __init__(self, cell: Row, bounds: Bounds, skip: str | None, environment: Mapping[str, str]) -> None:
        self.cell, self.bounds = cell, bounds
        self.turns: list[dict[str, float]] = []
        self.facts: Row = {}
        self.process: BaseProcess | None = None
        self.status, self.spent, self.wanted = skip or "ok", 0.0, 0
        if skip is None:
            self._start(environment)

    @property
    def goes_on(self) -> bool:
        """Whether a turn is still wanted."""
        return self.status == "ok" and len(self.turns) < self.wanted

    def once(self) -> None:
        """Measure one turn, if one is still wanted."""
        if not self.goes_on:
            return
        try:
            self.connection.send(True)
        except OSError:  # it has died; the answer says of what
            pass
        answer = self._answer(self.bounds.limit - self.spent)
        if answer is not None:
            self.turns.append(answer["seconds"])
        if not self.goes_on:
            self.end()

    def end(self) -> None:
        """Stop the process, if one runs."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
            self.errors.unlink(missing_ok=True)
            self.process = None

    def row(self) -> Row:
        """Return the cell with its status and the statistics of its turns in milliseconds."""
        row = self.cell | {"status": self.status, "repeats": len(self.turns)} | self.facts
        if self.status != "ok":
            return row
        for stage in self.turns[0]:
            values = [1000 * seconds[stage] for seconds in self.turns]
            row |= {f"{stage}_ms": statistics.median(values), f"{stage}_turns_ms": values}
            if stage == "total":
                row |= {"total_min_ms": min(values), "total_max_ms": max(values)}
        return row

    def _start(self, environment: Mapping[str, str]) -> None:
        handle, name = tempfile.mkstemp(prefix="bench-", suffix=".txt")
        os.close(handle)
        self.errors = Path(name)
        self.connection, theirs = PROCESSES.Pipe()
        arguments = (self.cell, theirs, self.errors, dict(environment))
        self.process = PROCESSES.Process(target=serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        if self._answer(START_SECONDS) is None:
            return
        self.spent = 0.0  # importing and compiling is no pass
        answer = self._answer(self.bounds.limit)
        if answer is not None:
            seconds = answer.pop("seconds")["total"]
            self.facts = {key: value for key, value in answer.items() if key != "status"}
            self.wanted = repeats_for(seconds, self.bounds)

    def _answer(self, patience: float) -> Row | None:
        """Return the next answer if it is a good one, else None; then the status tells what happened."""
        start = time.perf_counter()
        if not self.connection.poll(max(0.0, patience)):
            if len(self.turns) < SLOW_REPEATS:  # else they are enough, and the row says how many there are
                self.status = "time limit"
            self.wanted = len(self.turns)
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
