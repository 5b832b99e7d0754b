"""The process of one cell, started by `measure.py`: prepares, then makes passes whenever it is told to.

It answers: {"status": "warm"} when libraries are loaded and kernels compiled, {"status": "ready", ...} after the first
pass at full size, {"status": "ok", "seconds": ...} for each turn; any other status is the end.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from graphgps_kmip.train.out_of_memory import PHRASES
from run.bench import epochs, gps, passes
from run.bench.attention_inputs import make_inputs
from run.bench.memory import PeakMemory, limit_memory
from run.bench.passes import NotSupported, Pass

SMALL = 64  # nodes of the first problem, which loads and compiles
WARMING_GRAPHS = 2  # of the first epoch
QUICK, TURN = 0.05, 0.02  # seconds: a pass this quick is repeated in its turn for so long
Facts = Callable[[], dict[str, Any]]
Maker = Callable[[int | None], tuple[Pass, Facts]]


def serve(cell: dict[str, Any], connection: Connection, errors: Path, environment: Mapping[str, str]) -> None:
    """Prepare a cell and measure a turn for each message, until the process is ended."""
    os.environ.update(environment)
    with errors.open("w") as file:  # what libraries print belongs to nobody's table
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        torch.set_num_threads(cell["threads"])
        make = MAKERS[cell["bench"]](cell)
        make(SMALL)[0]()
        connection.send({"status": "warm"})
        limit_memory(cell["device"])
        run, facts = make(None)
        with PeakMemory(cell["device"]) as peak:
            seconds = run()
        connection.send({"status": "ready", "seconds": seconds, "memory_mib": peak.mib, **facts()})
        while connection.recv():
            connection.send({"status": "ok", "seconds": turn(run, seconds["total"])})
    except BaseException as error:  # whatever it is, it becomes a row
        connection.send({"status": describe(error)})


def turn(run: Pass, expected: float) -> dict[str, float]:
    """Return the seconds of one pass by stage; of a quick one the median of several.

    While the others had their turns, this process' threads slept and its data left the caches: a quick pass is made
    once to wake them, uncounted, and then for 20 ms.
    """
    if expected > QUICK:
        return run()
    run()
    start, done = time.perf_counter(), []
    while not done or time.perf_counter() - start < TURN:
        done.append(run())
    return {stage: statistics.median(one[stage] for one in done) for stage in done[0]}


def attention_maker(cell: dict[str, Any]) -> Maker:
    """Return what makes a pass, and the facts about it, at a small size or (None) at the cell's own."""
    name, num_keys, setting = cell["contestant"], cell["k"], cell["setting"]

    def make(n: int | None) -> tuple[Pass, Facts]:
        data, n = (cell["data"], cell["n"]) if n is None else ("gaussian", n)
        inputs = make_inputs(data, n, cell["dim"], cell["heads"]).to(cell["device"])
        facts = {"num_pairs": inputs.num_pairs, "graphs": inputs.context.num_graphs}
        if setting == "search":
            run = passes.search_pass(name, inputs, num_keys)
            return (
                run,
                lambda: (
                    facts
                    | {"recall": passes.recall(name, inputs, num_keys)}
                    | passes.pairs_seen(name, inputs, num_keys)
                ),
            )
        if setting == "breakdown":
            return passes.breakdown_pass(name, inputs, num_keys), lambda: facts
        return passes.attention_pass(name, inputs, num_keys, setting), lambda: facts

    return make


def layer_maker(cell: dict[str, Any]) -> Maker:
    """As `attention_maker`, for a whole GPS layer."""

    def make(n: int | None) -> tuple[Pass, Facts]:
        data, n = (cell["data"], cell["n"]) if n is None else ("single", n)
        return gps.layer_pass(cell["contestant"], data, n, cell["dim"], cell["heads"], cell["k"], cell["device"])

    return make


def epoch_maker(cell: dict[str, Any]) -> Maker:
    """As `attention_maker`, for a whole training epoch."""
    names = "contestant", "data", "graphs", "k", "device", "attn_dropout"

    def make(n: int | None) -> tuple[Pass, Facts]:
        given = {name: cell[name] for name in names} | ({} if n is None else {"graphs": WARMING_GRAPHS})
        return epochs.epoch_pass(*given.values())

    return make


MAKERS = {"attention": attention_maker, "layer": layer_maker, "epoch": epoch_maker}


def describe(error: BaseException) -> str:
    """Return the status of a row that an error ends."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, MemoryError) or any(phrase in text.lower() for phrase in (*PHRASES, "bad_alloc")):
        return "out of memory"
    # torch's own words when no kernel of the kind asked for takes these inputs
    if isinstance(error, NotSupported) or "no available kernel" in text.lower():
        return f"not supported: {text[:200]}"
    return f"error: {type(error).__name__}: {text[:200]}"
