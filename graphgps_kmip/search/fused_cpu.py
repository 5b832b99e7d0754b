"""Fused C kernel of k-MIP search on a CPU: a score leaves the registers only to enter a list of the K best.

Keys are in descending order of norm, as in LEMP (Teflioudi et al., 2015), thresholds start from group maxima, and
8-bit integers screen the keys; ``tree`` prunes by the boxes of a k-d tree. The kernel is ``ops/native/kmip_search.c``;
docs/exact-search.md explains and measures it.
"""

from __future__ import annotations

import ctypes
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from graphgps_kmip.ops.native import dtype_flags, load, pointer, unavailable_reason
from graphgps_kmip.search.problem import SearchProblem

LARGEST = 2**31 - 64  # keys of a graph are counted in 32 bits
ORDERS = {"given": 0, "norm": 1, "tree": 4}  # as kmip_search.c numbers them
SCREEN = 2
# Channels from which the integer screen is faster than the full product (docs/exact-search.md; on Arm not measured).
SCREEN_FROM = {"avx2": 6, "avxvnni": 6, "avx512": 8, "avx512vnni": 7, "dotprod": 5, "i8mm": 5}
# Up to this K thresholds start from group maxima; above it plain torch is faster for more than a SHAREth of the keys.
SEEDED, SHARE = 192, 5
# Multiplications that take about as long as starting a thread (20 us at 1e11 a second and core).
THREAD_WORK = 2_000_000


class ScanCounts(NamedTuple):
    """Work of a search: pairs scored in full, pairs screened, keys inserted into lists, keys that passed the screen."""

    scored: int
    screened: int
    inserted: int
    survived: int


def search_cpu(problem: SearchProblem) -> tuple[Tensor, Tensor]:
    """Find the K largest inner products for each query, on as many threads as torch uses.

    Of equal scores the key that is visited first is kept. Returns index (H, N, K) int64, -1: missing, and score, -inf.
    """
    return scan(problem)[:2]


def scan(problem: SearchProblem, order: str = "norm", screen: bool | None = None) -> tuple[Tensor, Tensor, ScanCounts]:
    """Search as `search_cpu`, with counts of the work, and options by which benchmarks turn the three ideas off.

    The order of the keys in graphs of 1,024 keys and more is as "given", by descending "norm", or by the boxes of a k-d
    "tree" that may hold one of the K best. The integer screen is used if the CPU supports it; None: if it is faster.
    """
    q, k, ptr_q, ptr_k = (tensor.contiguous() for tensor in (problem.q, problem.k, problem.ptr_q, problem.ptr_k))
    heads, rows, dim = q.shape
    index = torch.empty(heads, rows, problem.num_keys, dtype=torch.int64)
    score, counts = torch.empty(index.shape, dtype=q.dtype), torch.zeros(4, dtype=torch.int64)
    screen = dim >= SCREEN_FROM.get(instruction_set(q.dtype), dim + 1) if screen is None else screen
    failed = load("kmip_search", *dtype_flags(q.dtype)).kmip_search(
        *map(pointer, (q, k, ptr_q, ptr_k)),
        *map(ctypes.c_long, (heads, rows, k.size(1), problem.num_graphs)),
        *(dim, problem.num_keys, ORDERS[order] + SCREEN * screen, num_threads(problem)),
        *map(pointer, (index, score, counts)),
    )
    if failed:
        raise MemoryError(f"not enough memory for the search among {k.size(1)} keys of {dim} channels")
    return index, score, ScanCounts(*counts.tolist())


def instruction_set(dtype: torch.dtype = torch.float32) -> str:
    """Return the instruction set that the kernel was compiled for, as ``ops/native/instruction_sets.py`` names it."""
    path = load("kmip_search", *dtype_flags(dtype)).kmip_search_path
    path.restype = ctypes.c_char_p
    return path().decode()


def cpu_not_supported_reasons(problem: SearchProblem) -> list[str]:
    """Return the reasons why the kernel does not support this problem."""
    reasons = []
    if problem.q.device.type != "cpu":
        reasons.append(f"it runs on cpu, not on {problem.q.device.type}")
    elif reason := unavailable_reason("kmip_search", *dtype_flags(problem.q.dtype)):
        reasons.append(reason)
    if problem.q.size(2) == 0:
        reasons.append("it needs channels")
    if max(problem.k.size(1), problem.num_keys) > LARGEST:
        reasons.append(f"it counts up to {LARGEST} keys, not {problem.k.size(1)}")
    return reasons


def cpu_not_preferred_reasons(problem: SearchProblem) -> list[str]:
    """Return the reasons why plain torch is faster; an empty list if it is not."""
    largest = _largest_graph(problem)
    if problem.num_keys > SEEDED and problem.num_keys * SHARE > largest:
        return [f"a K of {problem.num_keys} is so large a part of {largest} keys that nearly all are collected"]
    return []


def num_threads(problem: SearchProblem) -> int:
    """Number of threads that are worth their start, at most torch's."""
    graphs = zip(pairwise(problem.bounds_q), pairwise(problem.bounds_k), strict=True)
    work = sum((b - a) * (d - c) for (a, b), (c, d) in graphs) * problem.num_heads * problem.q.size(2)
    return max(1, min(torch.get_num_threads(), work // THREAD_WORK))


def _largest_graph(problem: SearchProblem) -> int:
    return max((end - start for start, end in pairwise(problem.bounds_k)), default=0)


# Number of keys from which the tree pays, and of channels up to which (docs/exact-search.md, unit-norm keys).
TREE_FROM, TREE_FROM_ELSE = {"avx512": 4_000, "avx512vnni": 4_000}, 2_000
TREE_DIM, TREE_DIM_ELSE = {"portable": 8, "neon": 6}, 5
# If less than CROWD of the keys are within NEAR of the largest norm, norm order prunes as much (docs/benchmarks.md).
NEAR, CROWD = 0.8, 0.012


def search_tree(problem: SearchProblem) -> tuple[Tensor, Tensor]:
    """Find the K largest inner products for each query; graphs of less than 1,024 keys are searched as by ``cpu``.

    Time: O(N log N) to build, then that of the pairs in open boxes. Returns index and score as `search_cpu`.
    """
    return scan(problem, order="tree")[:2]


def tree_not_preferred_reasons(problem: SearchProblem) -> list[str]:
    """Return the reasons why a scan is faster; an empty list for few dimensions, many keys, and similar norms."""
    reasons = []
    path = "" if cpu_not_supported_reasons(problem) else instruction_set(problem.q.dtype)
    most, fewest = TREE_DIM.get(path, TREE_DIM_ELSE), TREE_FROM.get(path, TREE_FROM_ELSE)
    if problem.q.size(-1) > most:
        reasons.append(f"pays up to {most} dimensions a head, not for {problem.q.size(-1)}")
    largest = _largest_graph(problem)
    if largest < fewest:
        reasons.append(f"pays from {fewest} keys in a graph, not for {largest}")
    if not reasons:
        norms = problem.k.norm(dim=-1)
        crowd = float((norms > NEAR * norms.max()).float().mean())
        if crowd < CROWD:
            reasons.append(f"only {crowd:.1%} of the keys are about as large as the largest: norm order prunes as much")
    return reasons
