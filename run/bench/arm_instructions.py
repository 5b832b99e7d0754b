"""Instructions of the CPU search on Arm for each pair that is scored, counted under emulation: no Arm CPU is needed.

  python -m run.bench.arm_instructions
  python -m run.bench.arm_instructions --n 20000 --dims 3,4,10 --data gaussian
  python -m run.bench.arm_instructions --part tree --n 2000,4000,8192 --dims 3,5,6,8
  python -m run.bench.arm_instructions --part attention --n 480 --dims 16

Debian, Ubuntu: apt install gcc gcc-aarch64-linux-gnu qemu-user. One thread searches the K best of N keys for QUERIES
and for twice as many; the difference, divided by QUERIES N, is what a pair costs. The packing of the keys, a part in N,
is left out. "full" scores each pair in float32, "screened" as bytes first. Keys of unit norm, the default, are the
worst case: none can be left out. A count is no time: waiting, for memory or after a mispredicted branch, is not in it.

Part "tree": instructions, in thousands for each query, of a whole search with N queries among N keys by the scan and by
the k-d tree, as `auto` would run either. Part "attention": those of full attention to a graph of N nodes for each pair
of them, one head, forward and backward.
"""

from __future__ import annotations

import argparse
import itertools
from functools import partial

import torch

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.full import full_attention
from graphgps_kmip.search import SearchProblem
from graphgps_kmip.search.fused_cpu import SCREEN_FROM, scan

from . import bench_records
from .attention_inputs import make_inputs
from .emulated_cpu import CPUS, emulated, missing
from .harness import Row

COLUMNS = ("data", "n", "dim", "isa", "full", "screened", "scan", "tree", "ratio", "forward", "backward")


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line.

    Raises:
        ValueError: compiler or emulator are missing, or an option is wrong.
    """
    args = bench_records.parse(
        words,
        __doc__,
        part=(tuple(PARTS), "pair", "what to count"),
        data=(("unit", "gaussian"), "unit", "queries and keys"),
        n=(bench_records.sizes, [100_000], "keys"),
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
    torch.set_num_threads(1)
    for n, dim, isa in itertools.product(args.n, args.dims, CPUS):
        counts = PARTS[args.part](isa, args, n, dim)
        rows.append({"data": args.data, "n": n, "dim": dim, "k": args.k, "isa": isa} | counts)
        print(f"N = {n}, D = {dim}, {isa}: {counts}", flush=True)
    return bench_records.save("arm_instructions", args, rows, COLUMNS)


def pair(isa: str, args: argparse.Namespace, n: int, dim: int) -> Row:
    """Count the instructions that one more pair of a query and a key takes, and how many times fewer bytes need."""
    inputs = make_inputs(args.data, max(n, 2 * args.queries), dim, 1)
    q, k = inputs.q[:, : 2 * args.queries], inputs.k[:, :n]
    with emulated(isa) as cpu:
        counts = {}
        for name, screen in (("full", False), ("screened", True))[: 1 + (isa in SCREEN_FROM)]:
            problems = [SearchProblem.of(x, k, None, None, args.k) for x in (q[:, : args.queries], q)]
            first, both = (cpu.count(partial(scan, one, "norm", screen)) for one in problems)
            counts[name] = (both - first) / (args.queries * n)
    return counts | ({"ratio": counts["full"] / counts["screened"]} if "screened" in counts else {})


def scan_and_tree(isa: str, args: argparse.Namespace, n: int, dim: int) -> Row:
    """Count the instructions of whole searches by scan and by tree, in thousands for each query."""
    problem = make_inputs(args.data, n, dim, 1).problem(args.k)
    with emulated(isa) as cpu:
        by_scan, by_tree = (cpu.count(partial(scan, problem, order)) / n / 1000 for order in ("norm", "tree"))
    return {"scan": by_scan, "tree": by_tree, "ratio": by_scan / by_tree}


def attention(isa: str, _args: argparse.Namespace, n: int, dim: int) -> Row:
    """Count the instructions of full attention to one graph for each pair of nodes, forward and backward."""
    qkv, context = torch.randn(n, 3 * dim, requires_grad=True), GraphContext.of(None, torch.empty(n, 1))
    with emulated(isa) as cpu:
        outputs = []
        forward = cpu.count(lambda: outputs.append(full_attention(qkv, context, 1)))
        backward = cpu.count(lambda: outputs[0].sum().backward())
    return {"forward": forward / n**2, "backward": backward / n**2}


PARTS = {"pair": pair, "tree": scan_and_tree, "attention": attention}


if __name__ == "__main__":
    bench_records.run(main)
