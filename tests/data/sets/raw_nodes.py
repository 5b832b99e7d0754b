"""What the tests of single graphs with labelled nodes share: raw files as published, and code that hides in them."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data import DataError, DatasetInfo, DatasetRecord, open_dataset
from graphgps_kmip.data.dataset import SPLITS
from tests.data.sets.raw_files import offline

NODES = 10


def opened(record: DatasetRecord, root: Path, split_index: int = 0) -> Data:
    """Return the one graph after every check that a run makes of it."""
    with offline():
        dataset = open_dataset(record, root, split_index=split_index)
    DatasetInfo.of(dataset, record)
    folder = root / record.raw.folder
    if not any((folder / name).exists() for name in record.raw.archives):
        assert [name for name in record.raw.files if not (folder / name).exists()] == []  # it names what was read
    return dataset.graphs[0]


def raw_folder(record: DatasetRecord, root: Path) -> Path:
    """Make the folder of a data set with its ``raw``, and return the latter."""
    folder = root / record.raw.folder / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def edges_of(graph: Data) -> list[tuple[int, int]]:
    return sorted(map(tuple, graph.edge_index.T.tolist()))


def both_ways(edges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted({edge for one, other in edges for edge in ((one, other), (other, one))})


def split_masks(number: int = 0, nodes: int = NODES) -> dict[str, np.ndarray]:
    """Return three masks: by number, other nodes validate and test; the last node is in no part."""
    part = (np.arange(nodes) + number) % 5  # 0, 1, 2 train, 3 validates, 4 tests
    inside = np.arange(nodes) < nodes - 1
    masks = {"train": (part < 3) & inside, "val": (part == 3) & inside, "test": (part == 4) & inside}
    return {f"{split}_mask": mask for split, mask in masks.items()}


def check_masks(graph: Data, masks: dict[str, np.ndarray]) -> None:
    for split in SPLITS:
        found: Tensor = graph[f"{split}_mask"]
        assert found.dtype == torch.bool
        assert found.tolist() == masks[f"{split}_mask"].astype(bool).tolist(), split


def compressed(prefix: str, matrix: np.ndarray) -> dict[str, np.ndarray]:
    """Return a matrix as the four arrays of a compressed sparse one."""
    sparse = scipy.sparse.csr_matrix(matrix)
    parts = {"data": sparse.data, "indices": sparse.indices, "indptr": sparse.indptr, "shape": np.array(sparse.shape)}
    return {f"{prefix}{name}": part for name, part in parts.items()}


def check_refused(
    record: DatasetRecord, root: Path, file: str, reason: str, careless: Callable[[Path], Any] | None = None
) -> None:
    """A raw file that cannot be used is named in one line and set aside; code in it would make ``root / "it-ran"``.

    ``careless`` reads the file without precautions, which shows that the code in it does run.
    """
    with offline(), pytest.raises(DataError) as error:
        open_dataset(record, root)
    assert "\n" not in str(error.value)
    assert f"{file} cannot be used ({reason}" in str(error.value)
    aside = root / record.raw.folder / f"{file}.damaged-1"
    assert aside.is_file()
    assert not (root / "it-ran").exists()
    if careless:
        careless(aside)
        assert (root / "it-ran").is_dir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # classes of torch_geometric leave the file open
        cause: BaseException | None = error.value
        while cause:
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__cause__
