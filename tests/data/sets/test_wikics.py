"""WikiCS: one JSON file with twenty splits and one test part."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np

from graphgps_kmip.data import find
from tests.data.sets.raw_nodes import NODES, both_ways, check_masks, check_refused, edges_of, opened, raw_folder

RECORD = find("PyG-WikiCS", "none")
PART = np.arange(NODES)


def masks(number: int) -> dict[str, np.ndarray]:
    """Return a split: nodes 0 to 6 train, validate or stop early by its number, 7 to 9 test."""
    role = np.where(PART < 7, (PART + number) % 3, 3)
    names = ("train_mask", "val_mask", "stopping_mask", "test_mask")
    return {name: role == number for number, name in enumerate(names)}


def place(root: Path) -> Path:
    splits = [masks(number) for number in range(20)]
    content = {
        "features": [[number / 2, -1.0] for number in range(NODES)],
        "labels": [number % 4 for number in range(NODES)],
        "links": [[1, 2], [0], *([[]] * 7), [3]],
        "test_mask": splits[0]["test_mask"].tolist(),
    }
    for name in ("train_mask", "val_mask", "stopping_mask"):
        content[f"{name}s"] = [split[name].tolist() for split in splits]
    path = raw_folder(RECORD, root) / "data.json"
    path.write_text(json.dumps(content))
    return path


def test_links_go_both_ways_and_every_split_can_be_chosen(tmp_path: Path) -> None:
    place(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch_geometric's class warns unless it is told which edges to give
        for number in (0, 19):
            graph = opened(RECORD, tmp_path, number)
            check_masks(graph, masks(number))
    assert graph.x.tolist() == [[number / 2, -1.0] for number in range(NODES)]
    assert graph.y.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert edges_of(graph) == both_ways([(0, 1), (0, 2), (9, 3)])


def test_a_file_that_ends_too_early_is_named_and_set_aside(tmp_path: Path) -> None:
    path = place(tmp_path)
    path.write_text(path.read_text()[:100])
    check_refused(RECORD, tmp_path, "raw/data.json", "JSONDecodeError")
