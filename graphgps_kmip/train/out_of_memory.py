"""Out of memory, told in terms of the batch that did not fit, and the peak of what did."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphgps_kmip.errors import OutOfMemory

# The allocators of CUDA, of the CPU (Linux, Windows) and of KeOps raise a plain RuntimeError with one of these.
PHRASES = ("out of memory", "can't allocate memory", "not enough memory")


@contextmanager
def explain_out_of_memory(batch: Any) -> Iterator[None]:
    """Turn an allocator's error into one line with the size of the batch and the keys to turn.

    Raises:
        OutOfMemory: the block ran out of memory; any other error passes through.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not any(phrase in str(error).lower() for phrase in PHRASES):
            raise
        raise OutOfMemory(
            f"Out of memory on a batch of {_describe(batch)}. Lower train.batch_size and raise "
            "optim.batch_accumulation by the same factor, set share.gradient_checkpointing True, or lower "
            f"gt.dim_hidden. ({str(error).splitlines()[0] if str(error) else 'MemoryError'})"
        ) from error


def _describe(batch: Any) -> str:
    ptr = getattr(batch, "ptr", None)
    if ptr is None:
        return f"1 graph of {getattr(batch, 'num_nodes', 'unknown')} nodes"
    sizes = ptr.diff()
    return f"{len(sizes)} graphs, the largest of {int(sizes.max())} nodes"


def peak_memory() -> dict[str, int]:
    """Return the peak resident memory of this process, and of its CUDA device if it used one, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes on macOS, kibibytes on Linux
    peak = {"ram": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    if torch.cuda.is_initialized():
        peak["cuda"] = torch.cuda.max_memory_allocated()
    return peak
