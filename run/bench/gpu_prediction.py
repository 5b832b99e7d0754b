"""Predicted times of k-MIP attention on GPUs that are absent, from the machine code of its kernels; no GPU is needed.

  python -m run.bench.gpu_prediction                       # registers, spills and instructions of each tiling
  python -m run.bench.gpu_prediction --n 1e5,1e6 --dims 10 # and times, beside those that the paper prints

The search is bound by instructions: each of the four schedulers of a multiprocessor starts one in a cycle. Machine code
says how many a part of the kernel has, and the control flow on random data, counted on the CPU for a few tiles, how
often it runs. A prediction is these instructions at the full rate, which no kernel reaches: a lower bound.
The rest of a training step is bound by memory: bytes over bandwidth, gathers by sectors of 32 bytes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from graphgps_kmip.common.triton_check import power_above
from graphgps_kmip.experiments.printed_tables import load_printed
from graphgps_kmip.search.triton_tilings import CANDIDATES, Tiling

from .gpu_code import Code, body, compile_for, jumped_over, loops, programs_at_once
from .screening_counts import Counts, count

NUM_KEYS = 10
SCHEDULERS = 4  # of a multiprocessor, each starting one instruction of a warp in a cycle
DATA = ("gaussian", "unit")
TILINGS = (*CANDIDATES, Tiling(64, 64, 4, 4), Tiling(64, 64, 4, 8), Tiling(128, 64, 4, 8, 128))
PRINTED = Path(__file__).parents[1] / "experiments" / "printed"


class Card(NamedTuple):
    """Published specifications of a GPU.

    Args:
        capability (int): compute capability, times 10.
        multiprocessors (int): of the card.
        clock (float): boost clock in Hz.
        bandwidth (float): of its memory in bytes a second.
        shared (int): bytes of shared memory of a multiprocessor.
    """

    capability: int
    multiprocessors: int
    clock: float
    bandwidth: float
    shared: int


# NVIDIA A100 40 GB (the paper's), H100 SXM, B200 (its memory's 8 TB/s; clock and multiprocessors of its half rate).
CARDS = {
    "A100": Card(80, 108, 1.41e9, 1.555e12, 164 << 10),
    "H100": Card(90, 132, 1.98e9, 3.35e12, 228 << 10),
    "B200": Card(100, 148, 1.965e9, 8.0e12, 228 << 10),
}


class Parts(NamedTuple):
    """Instructions of a warp in the parts of the search kernel.

    Args:
        screening (int): of a group of keys: products, maxima, and the decision.
        visit (int): of each block of a group with a candidate: products again, and whether it has one.
        entry (int): of a block that has one, beside what follows.
        whole (int): of one dimension of a block that is scored in full.
        insertion (int): of a round.
    """

    screening: int
    visit: int
    entry: int
    whole: int
    insertion: int


def compiled_search(capability: int, tiling: Tiling, dim: int, num_keys: int = NUM_KEYS) -> Code:
    """Compile the search kernel with screening in half precision."""
    from graphgps_kmip.search.triton_search_kernels import search_kernel

    constants = {"D": dim, "WIDTH": max(16, power_above(dim)), "SLOTS": power_above(num_keys), "SCREEN": True}
    constants |= {"QUERIES": tiling.queries, "KEYS": tiling.keys, "STEP": tiling.step}
    options = {"num_warps": tiling.warps, "maxnreg": tiling.registers or None}
    return compile_for(capability, search_kernel, constants, low="fp16", **options)


def parts_of(code: Code) -> Parts | None:
    """Return the instructions by part, None where the loops are not those that the source has.

    The loop over groups holds the one over blocks, which holds those over dimensions and of insertions. Loops that
    only wait for tensor cores begin behind the last instruction of the kernel (EXIT).
    """
    end = max(at for at, one in enumerate(code.instructions) if one.operation == "EXIT")
    nest = [one for one in loops(code.instructions) if one.last < end]
    groups = next((one for one in nest if sum(map(one.holds, nest)) >= 3), None)
    visits = next((one for one in nest if groups and groups.holds(one) and any(map(one.holds, nest))), None)
    if visits is None or sum(map(groups.holds, nest)) != 3:
        return None  # blocks of a group in a loop of their own, for one
    whole, insertion = (one for one in nest if visits.holds(one))
    screening, visit, *others = (body(code.instructions, one).total() for one in (groups, visits, whole, insertion))
    entry = jumped_over(code.instructions, visits)
    return Parts(screening, visit - entry, entry, *others)


def keys_and_queries(data: str, n: int, dim: int, tile: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tile of queries and all keys: Gaussian, or these on the unit sphere."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(rows, dim, generator=generator) for rows in (tile, n))
    return (q, k) if data == "gaussian" else tuple(torch.nn.functional.normalize(x, dim=1) for x in (q, k))


def search_seconds(card: Card, parts: Parts, counts: list[Counts], tiling: Tiling, n: int, dim: int) -> float:
    """Return the seconds of a search of n queries by instructions alone, at the full rate.

    Args:
        card: that searches.
        parts: instructions of the kernel.
        counts: of several tiles, whose mean stands for all.
        tiling: of the kernel.
        n: queries, and keys.
        dim: their dimensions.
    """
    each = Counts(*map(fmean, zip(*counts, strict=True)))
    instructions = (
        each.screened * parts.screening
        + each.visited * tiling.step * parts.visit
        + each.entered * parts.entry
        + each.whole * dim * parts.whole
        + each.rounds * parts.insertion
    )
    tiles = -(-n // tiling.queries)
    return tiles * tiling.warps * instructions / (card.multiprocessors * SCHEDULERS * card.clock)


def other_seconds(card: Card, n: int, dim: int, training: bool) -> float:
    """Return the seconds of memory traffic beside the search: preparation, attention, and the gradients of it.

    Args:
        card: whose bandwidth it is.
        n: nodes.
        dim: channels of queries, keys and values, float32.
        training: with the backward pass.
    """
    gathered = -(-dim * 4 // 32) * 32 + 32  # a row of floats, in sectors, rarely aligned
    entries = n * NUM_KEYS
    prepared = n * dim * 4 * 12 + n * 8 * 2 * 8  # scaled, turned and half-precision copies; norms sorted by 8 passes
    found = entries * (8 + 4)
    forward = entries * (8 + 4 + 4 + gathered) + n * dim * 4
    if not training:
        return (prepared + found + forward) / card.bandwidth
    scores = entries * (8 + 4 + 4 + 2 * gathered) + n * dim * 8
    sort = entries * 2 * 16 * 8  # keys and places of 8 bytes, 8 passes
    sums = 2 * (entries * (8 + 4 + gathered) + n * dim * 4)
    return (prepared + found + forward + scores + sort + sums) / card.bandwidth


def resources() -> Iterator[str]:
    """Yield a table of the tilings by card: registers, spills, programs at once, instructions for each pair."""
    yield "| card | queries, keys, step, warps | registers | spilled bytes | warps at once | instructions a pair |"
    yield "|---|---|---|---|---|---|"
    for name, card in CARDS.items():
        for tiling in TILINGS:
            shape = f"{tiling.queries}, {tiling.keys}, {tiling.step}, {tiling.warps}"
            bound = f" (at most {tiling.registers})" if tiling.registers else ""
            try:
                code = compiled_search(card.capability, tiling, dim=10)
            except RuntimeError as error:
                yield f"| {name} | {shape} | does not compile: {str(error).splitlines()[0]} | | | |"
                continue
            at_once = programs_at_once(code, 65536, card.shared, 64) * tiling.warps
            parts = parts_of(code)
            pairs = tiling.queries * tiling.keys * tiling.step / (32 * tiling.warps)
            each = f"{parts.screening / pairs:.1f}" if parts else "not found"
            yield f"| {name} | {shape} | {code.registers}{bound} | {code.spilled} | {at_once} | {each} |"


def times(names: list[str], sizes: list[int], dims: list[int], tiles: int) -> Iterator[str]:
    """Yield a table of predicted milliseconds, beside what the paper prints for an A100."""
    tables = load_printed(PRINTED)
    printed = [tables["kmip-paper/table15"].rows, tables["kmip-paper/table16"].rows]
    yield (
        "| N | D | keys | screened, visited | "
        + " | ".join(f"{name}: inference, training" for name in names)
        + " | printed: k-MIP | FlashAttention, fp16 |"
    )
    yield "|---|---|---|---|" + "---|" * (len(names) + 2)
    for dim in dims:
        for n in sizes:
            paper = [_printed(rows, n, dim) for rows in printed]
            for data in DATA:
                yield _row(names, n, dim, data, tiles, paper)


def _row(names: list[str], n: int, dim: int, data: str, tiles: int, paper: list[tuple[str, str]]) -> str:
    counted: dict[Tiling, list[Counts]] = {}
    cells = []
    for name in names:
        card = CARDS[name]
        best = None
        for tiling in TILINGS:
            code = compiled_search(card.capability, tiling, dim)
            parts = parts_of(code)
            if parts is None or code.spilled:
                continue
            if tiling not in counted:
                inputs = (keys_and_queries(data, n, dim, tiling.queries, seed) for seed in range(tiles))
                counted[tiling] = [count(q, k, NUM_KEYS, tiling) for q, k in inputs]
            seconds = search_seconds(card, parts, counted[tiling], tiling, n, dim)
            best = min(best or (seconds, tiling), (seconds, tiling))
        if best is None:
            cells.append("every tiling spills")
            continue
        both = (best[0] + other_seconds(card, n, dim, training) for training in (False, True))
        cells.append(", ".join(f"{seconds * 1e3:.3g}" for seconds in both) + f" ({best[1].queries} x {best[1].keys})")
        share = _share(counted[best[1]], best[1], n)
    known = " | ".join(", ".join(pair) if any(pair) else "" for pair in zip(*paper, strict=True))
    return f"| {n:,} | {dim} | {data} | {share} | {' | '.join(cells)} | {known} |"


def _share(counts: list[Counts], tiling: Tiling, n: int) -> str:
    groups = n / (tiling.keys * tiling.step)
    return ", ".join(f"{fmean(getattr(one, what) for one in counts) / groups:.0%}" for what in ("screened", "visited"))


def _printed(rows: Any, n: int, dim: int) -> tuple[str, str]:
    row = rows.get(f"N=10^{len(str(n)) - 1}.0", {}) if dim == 10 else {}
    return tuple(row[name].text if name in row else "" for name in ("kmip_fp32_runtime", "flash_fp16_runtime"))


def main(words: list[str]) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", default="", help="numbers of nodes, such as 1e5,1e6,1e7 (none: no times)")
    parser.add_argument("--dims", default="10,16,64", help="channels of queries, keys and values")
    parser.add_argument("--cards", default="A100,H100", help=f"of {', '.join(CARDS)}")
    parser.add_argument("--tiles", type=int, default=3, help="tiles of queries that are counted")
    args = parser.parse_args(words)
    names = args.cards.split(",")
    if unknown := [name for name in names if name not in CARDS]:
        parser.error(f"--cards {unknown[0]}: no such card; there are {', '.join(CARDS)}")
    sizes = [int(float(n)) for n in args.n.split(",") if n]
    lines = times(names, sizes, [int(dim) for dim in args.dims.split(",")], args.tiles) if sizes else resources()
    for line in lines:
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
