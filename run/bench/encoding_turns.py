"""A contestant of the benchmark of encodings in a process of its own: its turns, its bounds, how it ended."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch_geometric.data import Data

from run.bench.encoding_cases import DATA, WAYS
from run.bench.memory import PeakMemory, limit_memory
from run.bench.worker import describe

Row = dict[str, Any]


class Contestant:
    """A process that encodes graphs whenever it is told to, and what became of it.

    Args:
        row: names the encoding, the contestant, its processes and threads.
        graphs: what it encodes.
        limit: seconds that all its turns together may take; one that is reached in a later turn ends the turns.
        memory: GiB that it may allocate; None: four fifths of what is free.
        folder: where it may keep results from turn to turn.
    """

    def __init__(self, row: Row, graphs: list[Data], limit: float, memory: float | None, folder: Path) -> None:
        self.row, self.limit, self.seconds, self.open = row | {"status": "ok"}, limit, [], True
        context = multiprocessing.get_context("fork")  # it has the graphs, and what is imported, at once
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(row, graphs, memory, folder, other))
        self.process.start()
        other.close()  # so that the end of the process is the end of the pipe

    def turn(self) -> None:
        """Measure one turn, if there is time left for it."""
        left = self.limit - sum(self.seconds)
        if not self.open or max(self.seconds, default=0) > left:
            return
        try:
            self.connection.send(True)
            answer = self.connection.recv() if self.connection.poll(left) else {"late": True}
        except (EOFError, OSError):  # the kernel ends a process that takes too much
            answer = {"status": "out of memory (the process was killed)"}
        self.open = "seconds" in answer
        if self.open:
            self.seconds.append(answer.pop("seconds"))
        if answer.pop("late", False) and not self.seconds:
            answer["status"] = f"over {self.limit:g} s"
        self.row |= answer

    def end(self) -> Row:
        """Stop the process and return the row."""
        self.process.kill()
        self.process.join()
        self.connection.close()
        row = self.row | {"repeats": len(self.seconds)}
        if row["status"] == "ok":
            row |= {"s": float(np.median(self.seconds)), "s_min": min(self.seconds), "s_max": max(self.seconds)}
        return row


def serve(row: Row, graphs: list[Data], memory: float | None, folder: Path, connection: Connection) -> None:
    """Encode the graphs for each message, until the process is ended; the last answer tells of an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # bars and warnings belong to nobody's table
    try:
        torch.set_num_threads(row["threads"])
        way = WAYS[row["contestant"].split(",")[0]]
        with threadpool_limits(row["threads"]):
            few = graphs[:2] if len(graphs) > 1 else DATA["trees"](np.random.default_rng(0), 2, 0)
            way(row["encoding"], few, 1, folder)  # imports, compiled kernels
            _bound(memory)
            while connection.recv():
                with PeakMemory("cpu") as peak:
                    start = time.perf_counter()
                    way(row["encoding"], graphs, row["processes"], folder)
                    seconds = time.perf_counter() - start
                connection.send({"seconds": seconds, "memory_mib": peak.mib})
    except BaseException as error:  # whatever it is, it becomes a row
        connection.send({"status": describe(error)})


def _bound(memory: float | None) -> None:
    limit_memory("cpu")
    if memory is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + int(memory * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
