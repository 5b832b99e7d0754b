"""Graph files as a user would save them, for the tests of folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphgps_kmip.data import GraphDataset, open_dataset
from graphgps_kmip.data.graph_folder import folder_record

EDGES = [[0, 1, 2], [1, 2, 0]]


def arrays(number: int = 0, **changes: Any) -> dict[str, Any]:
    """Return a directed triangle with a number as features and a label, as a user would save it; None leaves out."""
    values = {
        "x": np.full((3, 2), number / 2),
        "edge_index": np.array(EDGES, dtype=np.int32),
        "y": number % 3,
        **changes,
    }
    return {key: value for key, value in values.items() if value is not None}


def tensors(number: int = 0, **changes: Any) -> dict[str, torch.Tensor]:
    return {key: torch.as_tensor(value) for key, value in arrays(number, **changes).items()}


def write(folder: Path, files: Mapping[str, Any]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **content) if path.suffix == ".npz" else torch.save(content, path)
    return folder


def opened(folder: Path, task_type: str = "classification", level: str = "") -> GraphDataset:
    return open_dataset(folder_record(folder.name, folder.parent, task_type, level), folder.parent)


def numbers(dataset: GraphDataset) -> list[int]:
    return [int(2 * graph.x[0, 0]) for graph in dataset.graphs]
