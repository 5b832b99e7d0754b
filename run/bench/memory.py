"""Peak memory of one pass above what was there before it, and a bound that saves the machine from a cell."""

from __future__ import annotations

import ctypes
import gc
import resource
from pathlib import Path

import torch

MIB = 2**20
SHARE_OF_AVAILABLE = 0.8
STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """``with PeakMemory(device) as peak: ...``; then ``peak.mib``, None where the system does not tell.

    On CUDA what torch allocated (KeOps' own memory is not in it), on a CPU the resident memory of the process.
    """

    def __init__(self, device: str) -> None:
        self.device, self.mib = device, None

    def __enter__(self) -> PeakMemory:
        gc.collect()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
            return self
        _give_back_freed()
        try:
            CLEAR_REFS.write_text("5")  # resets VmHWM, the largest resident size so far
        except OSError:
            self.before = None
        else:
            self.before = _status_kib("VmRSS")
        return self

    def __exit__(self, *error: object) -> None:
        if self.device == "cuda":
            self.mib = (torch.cuda.max_memory_allocated() - self.before) / MIB
        elif self.before is not None:
            self.mib = max(0, _status_kib("VmHWM") - self.before) / 1024


def limit_memory(device: str) -> None:
    """Let allocations beyond four fifths of the available memory fail, instead of the machine.

    Address space is what can be bounded; CUDA maps far more of it than it uses, so there the GPU's own limit serves.
    """
    if device == "cuda" or not STATUS.exists():
        return
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024
    limit = _status_kib("VmSize") * 1024 + int(SHARE_OF_AVAILABLE * available)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _give_back_freed() -> None:
    """Hand free heap pages back: a pass that found them would look smaller than it is."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # not glibc
        return


def _status_kib(key: str) -> int:
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))
