"""Freed memory stays with the process: glibc's malloc keeps it for the next batch instead of giving it back.

Each tensor of more than some hundred KiB is otherwise mapped anew, and the kernel zeroes its pages at the first touch:
a quarter of the processor time of an epoch of GatedGCN on a CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
NEVER = -1
KEPT_BYTES = 256 * 2**20  # larger blocks are mapped and given back, so that holes in the heap stay small beside them
OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, in blocks of up to `KEPT_BYTES`; for a training on a CPU.

    Where a user has set malloc's environment variables or preloads another malloc, and where there is no glibc, nothing
    changes.

    Returns:
        Whether it does now.
    """
    if any(os.environ.get(name) for name in OWN_SETTINGS):
        return False
    with contextlib.suppress(OSError, AttributeError, TypeError):  # musl, macOS, Windows
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 (raises where mallopt is another library's)
        return bool(libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES) and libc.mallopt(M_TRIM_THRESHOLD, NEVER))
    return False
