"""Checks of one tensor of a graph: its kind, its size in memory, and NaN or infinite values."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from graphgps_kmip.errors import DataError

GIB = 2**30


def total_memory() -> int:
    """Return the bytes of memory of this machine; 2^63 - 1 where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return 2**63 - 1


def size_text(size: int) -> str:
    """Return a number of bytes for people."""
    return f"{size / GIB:,.1f} GiB" if size >= GIB / 10 else f"{size:,} bytes"


def check_kind(value: Tensor, key: str, where: str) -> None:
    """Raise DataError unless a tensor is dense, real, holds its values, and fits into memory.

    Args:
        value: the tensor.
        key: name of the attribute.
        where: data set, graph and file, for the error.
    """
    if value.is_nested or value.layout != torch.strided:
        kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        raise DataError(f"{where}: {key} is a {kind} tensor: save it dense, {key}.to_dense()")
    if value.is_complex() or value.is_quantized:
        raise DataError(f"{where}: {key} holds {value.dtype}: save real numbers, as float32 or int64")
    if value.is_meta:
        raise DataError(f"{where}: {key} was saved from the device 'meta', without its values: save it from the CPU")
    size = value.numel() * value.element_size()
    if size > total_memory():  # a file of a few bytes can claim any number of rows
        raise DataError(
            f"{where}: {key} claims shape {tuple(value.shape)}, {size_text(size)}, and this machine has "
            f"{size_text(total_memory())}: write the file again"
        )


def check_finite(value: Tensor | None, key: str, where: str, nan_allowed: bool = False) -> None:
    """Raise DataError if a tensor holds NaN or infinite values, naming the first.

    Args:
        value: the tensor; None and whole numbers pass.
        key: name of the attribute.
        where: data set, graph and file, for the error.
        nan_allowed: NaN means "unknown", as for labels; only infinity is refused.
    """
    if value is None or not value.is_floating_point():
        return
    wrong = value.isinf() if nan_allowed else ~value.isfinite()
    if not bool(wrong.any()):
        return
    first = wrong.nonzero()[0].tolist()
    found = float(value[tuple(first)])
    names = ("row", "column") if len(first) <= 2 else tuple(f"dimension {number}" for number in range(len(first)))
    place = ", ".join(f"{name} {index}" for name, index in zip(names, first, strict=False))
    raise DataError(
        f"{where}: {key} holds {'NaN' if found != found else 'an infinite value'}{f' in {place}' if place else ''} "
        f"({int(wrong.sum()):,} of {value.numel():,} values): replace or remove these values"
    )
