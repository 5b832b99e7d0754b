"""Raw point clouds: where they come from, what each must look like, and the files that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from graphgps_kmip.errors import DataError, InputError


class Cloud(NamedTuple):
    """One cloud as its raw file has it: features (N, C), labels (N,) or (1,), and "train", "val" or "test"."""

    x: np.ndarray
    y: np.ndarray
    part: str


@dataclass(frozen=True)
class CloudSource:
    """Where clouds come from, and what their graphs are.

    Args:
        url: archive with one folder of its own name, whose content belongs into ``raw``.
        files: files and folders in ``raw``.
        read: yields the clouds of the folder ``raw``, one at a time, in an order that never changes. If none validates,
            as many random training clouds do as there are test clouds, the same in every run.
        num_features: columns C of ``x``.
        positions: first of the three columns of ``x`` that are coordinates.
        num_classes: labels are 0 to ``num_classes`` - 1.
        k: in-edges of each point.
    """

    url: str
    files: tuple[str, ...]
    read: Callable[[Path], Iterator[Cloud]]
    num_features: int
    positions: int
    num_classes: int
    k: int


def checked(cloud: Cloud, source: CloudSource) -> tuple[np.ndarray, np.ndarray]:
    """Return features (float32) and labels (int32).

    Raises:
        ValueError: other columns, no points, values that are not finite, or labels that are no classes.
    """
    x, y = np.ascontiguousarray(cloud.x, np.float32), np.asarray(cloud.y)
    if x.ndim != 2 or x.shape[1] != source.num_features or not len(x):
        raise InputError(f"expected points with {source.num_features} columns, found shape {x.shape}")
    if not np.isfinite(x).all():
        raise InputError("a value is NaN or infinite")
    known = (y >= 0) & (y < source.num_classes)  # NaN is not known
    if not known.all() or (y % 1).any():
        raise InputError(f"labels must be whole numbers from 0 to {source.num_classes - 1}")
    return x, y.astype(np.int32)


def listed(title: str, raw: Path, name: str, listing: str) -> Path:
    """Return the path of a raw file that another raw file lists.

    Raises:
        DataError: there is no such file.
    """
    if not (raw / name).is_file():
        raise DataError(f"{title}: raw/{name} is missing, and raw/{listing} lists it: put both there from one download")
    return raw / name


def table(lines: list[str], columns: int) -> np.ndarray:
    """Return the numbers of lines of text, (lines, columns) float32.

    Raises:
        ValueError: something else than numbers, or another number of columns.
    """
    values = np.loadtxt(lines, np.float32, ndmin=2) if lines else np.empty((0, columns), np.float32)
    if values.shape[1] != columns:
        raise InputError(f"expected {columns} columns, found {values.shape[1]}")
    return values
