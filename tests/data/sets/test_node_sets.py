"""City-Networks and the records of single graphs: coordinates become sines and cosines; names, metrics, folders."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from graphgps_kmip.data import DataError, find
from tests.data.sets.raw_files import Code, opened
from tests.data.sets.raw_nodes import NODES, RECORDS, SEGMENTS, both_ways, city_network

PARIS = find("PyG-CityNetwork", "Paris")


def place(root: Path, **changed: Any) -> Path:
    raw = root / PARIS.raw.folder / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    city_network(PARIS, raw, **changed)
    return raw / "paris.tar.gz"


def test_coordinates_come_first_and_are_scaled_by_the_training_junctions(tmp_path: Path) -> None:
    place(tmp_path)
    x = opened(PARIS, tmp_path).graphs[0].x
    assert x.shape == (NODES, 67)
    lowest, highest = -0.9 * math.pi, 0.9 * math.pi
    for start in (0, 16):  # longitude, latitude
        for junction, angle in ((0, lowest), (7, highest), (8, highest + 1.8 * math.pi / 7)):
            expected = [math.sin(angle * 2**power) for power in range(8)]
            expected += [math.cos(angle * 2**power) for power in range(8)]
            # Longitudes are float32 in the file, where 2.7 - 2.0 is off by 1e-7, 48.7 - 48 by 1e-6; times 2^7 pi.
            torch.testing.assert_close(x[junction, start : start + 16], torch.tensor(expected), atol=0.01, rtol=0)
    squares = torch.tensor([0.0, 1, 4, 25, 36, 49])
    expected = (torch.arange(NODES) ** 2 - squares.mean()) / squares.std(correction=0)
    torch.testing.assert_close(x[:, 32:66], expected[:, None].expand(-1, 34), atol=1e-5, rtol=1e-5)
    assert x[:, 66].tolist() == [0] * NODES  # a constant column


def test_segments_given_both_ways_and_parts_given_by_indices_are_read_alike(tmp_path: Path) -> None:
    both = torch.tensor(both_ways(SEGMENTS)).T
    parts = {"train_mask": torch.tensor([7, 0, 1, 2, 6, 5]), "valid_mask": torch.tensor([8, 3])}
    place(tmp_path / "plain")
    place(tmp_path / "changed", edge_indices=both, **parts)
    plain, changed = (opened(PARIS, tmp_path / name).graphs[0] for name in ("plain", "changed"))
    for key in ("edge_index", "train_mask", "val_mask", "test_mask", "x"):
        torch.testing.assert_close(plain[key], changed[key])


def test_an_archive_with_code_is_refused_and_nothing_of_it_runs(tmp_path: Path) -> None:
    place(tmp_path, train_mask=[Code(tmp_path / "it-ran")])
    with pytest.raises(DataError, match=r"paris\.tar\.gz cannot be used \(it asks for"):
        opened(PARIS, tmp_path)
    assert not (tmp_path / "it-ran").exists()


def test_other_names_of_a_graph_share_its_folder_and_no_two_graphs_do() -> None:
    titles = {}
    for record in RECORDS:
        titles.setdefault(record.raw.folder.lower(), set()).add(record.title)
        assert sum(record.statistics.sizes or ()) <= record.statistics.mean_nodes
    assert all(len(names) == 1 for names in titles.values())
    for name in ("actor", "chameleon", "squirrel"):  # of Sp_Exphormer
        record = find("PyG-Actor") if name == "actor" else find("PyG-WikipediaNetwork", name)
        for other in (find("PyG-actor", name), find(f"PyG-{name}", name)):
            assert (other.raw, other.statistics, other.title) == (record.raw, record.statistics, record.title)
    fault = "its node features are those of Texas (known fault), edges, labels and splits are its own"
    assert fault in find("PyG-WebKB", "cornell").summary
    binary = {record.name for record in RECORDS if record.metric == "auc" and record.task_type == "classification"}
    assert binary == {"Minesweeper", "Tolokers", "Questions"}
