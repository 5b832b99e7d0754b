"""Instructions of the CPU search on Arm for each pair that is scored, counted under emulation: no Arm CPU is needed.

  python -m run.bench.arm_instructions
  python -m run.bench.arm_instructions --n 20000 --dims 3,4,10 --data gaussian

Debian, Ubuntu: apt install gcc gcc-aarch64-linux-gnu qemu-user. One thread searches the K best of N keys for QUERIES
and for twice as many; the difference, divided by QUERIES N, is what a pair costs. The packing of the keys, a part in N,
is left out. "full" scores each pair in float32, "screened" as bytes first. Keys of unit norm, the default, are the
worst case: none can be left out. A count is no time: waiting, for memory or after a mispredicted branch, is not in it.
"""

from __future__ import annotations

import argparse
import ctypes

import torch
from torch import Tensor

from graphgps_kmip.native import load, pointer
from graphgps_kmip.search.fused_cpu import ORDERS, SCREEN

from . import bench_records
from .attention_inputs import make_inputs
from .emulated_cpu import CPUS, emulated, missing

COLUMNS = ("data", "n", "dim", "isa", "full", "screened", "ratio")


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line.

    Raises:
        ValueError: compiler or emulator are missing, or an option is wrong.
    """
    args = bench_records.parse(
        words,
        __doc__,
        data=(("unit", "gaussian"), "unit", "queries and keys"),
        n=(bench_records.positive, 100_000, "keys"),
        queries=(bench_records.positive, 128, "queries of the shorter search"),
        dims=(bench_records.sizes, [2, 3, 4, 6, 8, 10, 16, 32, 64], "channels"),
        k=(bench_records.positive, 10, "keys for each query"),
        name=(str, "", "of the files instead of when and with what code they were made"),
    )
    if reason := missing():
        raise ValueError(reason)
    return args


def main(words: list[str]) -> int:
    """Count, write, print; return the exit code."""
    args, rows = parse(words), []
    for dim in args.dims:
        for isa in CPUS:
            counts = {"full": per_pair(isa, args, dim, False)}
            if isa != "neon":
                counts["screened"] = per_pair(isa, args, dim, True)
                counts["ratio"] = counts["full"] / counts["screened"]
            rows.append({"data": args.data, "n": args.n, "dim": dim, "k": args.k, "isa": isa} | counts)
            print(f"D = {dim}, {isa}: {counts}", flush=True)
    return bench_records.save("arm_instructions", args, rows, COLUMNS)


def per_pair(isa: str, args: argparse.Namespace, dim: int, screen: bool) -> float:
    """Count the instructions that one more pair of a query and a key takes."""
    inputs = make_inputs(args.data, max(args.n, 2 * args.queries), dim, 1)
    q, k = inputs.q[0, : 2 * args.queries].contiguous(), inputs.k[0, : args.n].contiguous()
    with emulated(isa):
        once, twice = (search_instructions(q[:queries], k, args.k, screen) for queries in (args.queries, len(q)))
    return (twice - once) / (args.queries * args.n)


def search_instructions(q: Tensor, k: Tensor, num_keys: int, screen: bool) -> int:
    """Count the instructions of one search by one thread, inside of `emulated`."""
    ptrs = [torch.tensor([0, len(x)]) for x in (q, k)]
    found = torch.empty(len(q), num_keys, dtype=torch.int64), torch.empty(len(q), num_keys)
    return load("kmip_search").kmip_search.instructions(
        *map(pointer, (q, k, *ptrs)),
        *map(ctypes.c_long, (1, len(q), len(k), 1)),
        *(q.size(1), num_keys, ORDERS["norm"] + SCREEN * screen, 1),
        *map(pointer, (*found, None)),
    )


if __name__ == "__main__":
    bench_records.run(main)
