"""What the machine can do at best with so many threads: the rates that results are shares of."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

from graphgps_kmip.train.run_recording import hardware, package_versions

SIDE = {"cpu": 2048, "cuda": 8192}  # of square matrices whose product runs at the full rate
STREAMED = 2**26  # floats in one array (256 MiB), beyond every cache
TRIES = 5


def machine_facts(device: str, threads: int) -> dict[str, Any]:
    """Return hardware, packages, load by others, and the rates of a float32 matrix product and of copying memory."""
    torch.set_num_threads(threads)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # of others: asked before our own work
    return {
        **hardware(torch.device(device)),
        "threads": threads,
        "load": load,
        "sgemm_gflops": round(sgemm_gflops(device), 1),
        "stream_gb_per_s": round(stream_gb_per_s(device), 1),
        "packages": package_versions(),
    }


def sgemm_gflops(device: str) -> float:
    """Return the rate of a large float32 matrix product, best of five, in 10^9 operations a second (no TF32)."""
    side = SIDE[device]
    a, b = torch.randn(2, side, side, device=device)
    return 2 * side**3 / _best_seconds(lambda: torch.mm(a, b), device) / 1e9


def stream_gb_per_s(device: str) -> float:
    """Return the rate of copying an array, read and written bytes together, best of five, in 10^9 bytes a second."""
    source, target = torch.ones(2, STREAMED, device=device)
    return 2 * source.nbytes / _best_seconds(lambda: target.copy_(source), device) / 1e9


def _best_seconds(work: Callable[[], object], device: str) -> float:
    seconds = []
    for _ in range(TRIES + 1):  # the first one starts threads and is dropped
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])
