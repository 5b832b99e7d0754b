"""Tile sizes of the GPU search: reckoned from the sizes of a problem, and measured at the first use on a card.

What is measured is kept on disk by card, driver and Triton version, and by class of problems. Results do not depend on
tile sizes, but for which of several equal K-th scores is kept. ``GRAPHGPS_KMIP_TILES=reckoned`` measures nothing.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.common.json_files import Damaged, parsed_object
from graphgps_kmip.common.triton_check import power_above
from graphgps_kmip.errors import InputError
from graphgps_kmip.native.compile_kernels import cache_folder
from graphgps_kmip.search.problem import SearchProblem

PROGRAMS = 4 * 132  # tiles that keep the multiprocessors of a large card busy
VARIABLE, MODES = "GRAPHGPS_KMIP_TILES", ("measured", "reckoned")
WORTH = 2**30  # query-key pairs from which on a search takes milliseconds, so that tile sizes matter
SECONDS = 2.0  # of timed passes at the most; compilers come on top, once
DRIVER = Path("/proc/driver/nvidia/version")
logger = logging.getLogger(__name__)


class Tiling(NamedTuple):
    """Tile sizes.

    Args:
        queries (int): queries per program; a power of two >= 16, for the tensor cores.
        keys (int): keys per block; likewise.
        step (int): blocks between two decisions, which synchronise all warps of a program.
        warps (int): warps per program.
        registers (int, optional): maximum number of registers per thread, 0: no bound; fewer allow more programs at a
            time. (default: 0)
    """

    queries: int
    keys: int
    step: int
    warps: int
    registers: int = 0


# What is tried for large graphs beside the reckoned tiling: those without spills, or with few instructions for each
# pair, by the machine code for capabilities 8.0, 9.0 and 10.0 (`python -m run.bench.gpu_prediction`).
CANDIDATES = (
    Tiling(64, 32, 8, 4), Tiling(128, 32, 8, 8), Tiling(64, 64, 4, 4, 128), Tiling(32, 64, 4, 4), Tiling(32, 32, 4, 2)
)  # fmt: skip


def choose_tiling(problem: SearchProblem) -> Tiling:
    """Tiles as large as the registers allow, unless the graphs are smaller or too few programs would be left.

    Every tile reads all keys of its graph, so at 64 queries the second-level cache is about as busy as the arithmetic;
    larger tiles read less. Estimated from instructions and bytes, not measured.
    """
    mean_q, mean_k = problem.q.size(1) // problem.num_graphs, problem.k.size(1) // problem.num_graphs
    width, slots = power_above(problem.q.size(-1)), power_above(problem.num_keys)
    largest = min(mean_q, problem.num_heads * problem.q.size(1) // PROGRAMS, 16 if width * slots > 1024 else 128)
    keys, step = 64 if mean_k >= 512 else 32, 4 if mean_k >= 4096 else 1
    if largest < 64:
        return Tiling(32 if largest >= 32 else 16, keys, step, warps=2)
    if step > 1:  # half the keys in twice the blocks: as many pairs between decisions, without spilled registers
        keys, step = 32, 8
    return Tiling(64, keys, step, 4) if largest < 128 else Tiling(128, keys, step, 8)


def best_tiling(problem: SearchProblem, precision: str, run: Callable[[Tiling], Any]) -> Tiling:
    """Return the fastest tiling for problems like this one on its card; measured if it is not known yet.

    Args:
        problem (SearchProblem): the search problem; small ones, and those not on a GPU, have the reckoned tiling.
        precision (str): of the screening.
        run (callable): searches with a tiling; returns the compiled kernel, of which ``n_spills`` is read.

    Raises:
        InputError: an unknown value of the environment variable.
    """
    mode = os.environ.get(VARIABLE) or MODES[0]
    if mode not in MODES:
        raise InputError(f"{VARIABLE}={mode}: no such mode, allowed are {', '.join(MODES)}")
    reckoned = choose_tiling(problem)
    size = problem.num_heads * problem.q.size(1) * (problem.k.size(1) // problem.num_graphs)
    if (
        mode == "reckoned"
        or size < WORTH
        or problem.q.device.type != "cuda"
        or torch.cuda.is_current_stream_capturing()
    ):
        return reckoned
    known = _known(card_name(problem.q.device))
    name = problem_class(problem, precision)
    if name not in known.tilings:
        with torch.cuda.device_of(problem.q):
            known.tilings[name] = fastest(dict.fromkeys((reckoned, *CANDIDATES)), run)
        known.store()
        logger.info(
            "k-MIP search: tiles of %s are the fastest here for %s, kept in %s (%s=reckoned measures nothing)",
            known.tilings[name], name, known.file, VARIABLE,
        )  # fmt: skip
    return known.tilings[name]


def fastest(
    tilings: Iterable[Tiling], run: Callable[[Tiling], Any], seconds: Callable[[Callable[[], Any]], float] | None = None
) -> Tiling:
    """Return the tiling of the shortest pass; those that spill registers only if all do, none that fails to compile.

    Args:
        tilings: the first one is kept where none can be measured.
        run: as in `best_tiling`.
        seconds (callable, optional): times a call. (default: by the GPU's events)
    """
    seconds = seconds or _gpu_seconds
    first, *others = tilings
    spills: dict[Tiling, int] = {}
    for tiling in (first, *others):
        try:
            spills[tiling] = getattr(run(tiling), "n_spills", 0) or 0
        except Exception as error:  # compilers raise anything
            logger.debug("tiles of %s cannot be used: %s", tiling, error)
    whole = [tiling for tiling, spilled in spills.items() if not spilled] or list(spills)
    taken: dict[Tiling, float] = {}
    end = time.monotonic() + SECONDS
    for tiling in whole:
        taken[tiling] = seconds(lambda tiling=tiling: run(tiling))
        if time.monotonic() > end:
            break
    return min(taken, key=taken.__getitem__, default=first)


def _gpu_seconds(call: Callable[[], Any]) -> float:
    """Return the seconds of a pass, the better of two."""
    start, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    start.record()
    call()
    middle.record()
    call()
    end.record()
    end.synchronize()
    return min(start.elapsed_time(middle), middle.elapsed_time(end)) / 1e3


def card_name(device: torch.device) -> str:
    """Return what a measurement depends on beside the problem: card, driver and Triton."""
    driver = re.search(r"\d+\.[\d.]+", DRIVER.read_text()) if DRIVER.exists() else None
    name = torch.cuda.get_device_properties(device).name
    return f"{name}, driver {driver[0] if driver else 'unknown'}, Triton {metadata.version('triton')}"


def problem_class(problem: SearchProblem, precision: str) -> str:
    """Return the name of all problems that share a tiling: sizes of queries and of graphs to a factor of four."""
    rows = problem.num_heads * problem.q.size(1)
    keys = problem.k.size(1) // problem.num_graphs
    width, slots = max(16, power_above(problem.q.size(-1))), power_above(problem.num_keys)
    dtype = str(problem.q.dtype).removeprefix("torch.")
    return f"{dtype}, {precision}, D {width}, K {slots}, 4^{_fours(rows)} queries, 4^{_fours(keys)} keys of a graph"


def _fours(number: int) -> int:
    return (number.bit_length() + 1) // 2


class Measured:
    """Tilings that were measured on one card, in a file of the cache folder.

    Args:
        file: where they are; one that is damaged counts as empty.
        card: name of the card, its driver and Triton; tilings of another one are left alone.
    """

    def __init__(self, file: Path, card: str) -> None:
        self.file, self.card = file, card
        self.tilings = {name: Tiling(*sizes) for name, sizes in self._stored().get(card, {}).items()}

    def _stored(self) -> dict[str, Any]:
        try:
            return parsed_object(self.file.read_bytes())
        except FileNotFoundError:
            return {}
        except (Damaged, OSError) as error:
            logger.warning("%s cannot be read (%s): tile sizes are measured anew", self.file, error)
            return {}

    def store(self) -> None:
        """Write them, beside those of other cards and processes; a folder that cannot be written is no error."""
        stored = self._stored()
        stored[self.card] = stored.get(self.card, {}) | {name: list(sizes) for name, sizes in self.tilings.items()}
        try:
            replace_file(self.file, json.dumps(stored, indent=1).encode())
        except OSError as error:
            logger.warning("%s cannot be written (%s): tile sizes are measured in each process", self.file, error)


@cache
def _known(card: str) -> Measured:
    return Measured(cache_folder() / "tilings.json", card)
