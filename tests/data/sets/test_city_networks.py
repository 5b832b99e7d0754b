"""City-Networks: tensors in a tar.gz, read in place; coordinates become sines and cosines."""

from __future__ import annotations

import io
import math
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

from graphgps_kmip.data import DatasetRecord, find
from graphgps_kmip.data.sets.city_networks import RECORDS
from tests.data.sets.raw_files import Code
from tests.data.sets.raw_nodes import (
    NODES,
    both_ways,
    check_masks,
    check_refused,
    edges_of,
    opened,
    raw_folder,
    split_masks,
)

PARIS = find("PyG-CityNetwork", "Paris")
SEGMENTS = [(0, 1), (1, 2), (5, 9)]
MASKS = {name: torch.from_numpy(mask) for name, mask in split_masks().items()}
NODE = torch.arange(NODES)
# Junctions 0, 1, 2, 5, 6, 7 train: they span longitudes 2.0 to 2.7 and latitudes 48.0 to 48.7.
FEATURES = torch.cat([2 + NODE[:, None] / 10, 48 + NODE[:, None] / 10, NODE[:, None] ** 2 * torch.ones(35)], 1)
FEATURES[:, 36] = 4.2
FILES = {
    "node_features_augmented.pt": FEATURES,
    "node_features.pt": FEATURES[:, :12] * 0,
    "edge_features.pt": torch.zeros(3, 25),
    "edge_indices.pt": torch.tensor(SEGMENTS).T,
    "10-chunk_16-hop_node_labels.pt": NODE,
    "train_mask.pt": MASKS["train_mask"],
    "valid_mask.pt": MASKS["val_mask"],
    "test_mask.pt": MASKS["test_mask"],
}


def pack(path: Path, files: dict[str, Any], top: str = "paris") -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            buffer = io.BytesIO()
            torch.save(content, buffer)
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = buffer.tell()
            buffer.seek(0)
            archive.addfile(member, buffer)


def place(root: Path, record: DatasetRecord = PARIS, **changed: Any) -> None:
    files = {**FILES, **{f"{name}.pt": content for name, content in changed.items()}}
    low = record.name.lower()
    pack(raw_folder(record, root) / f"{low}.tar.gz", files, low)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.title)
def test_an_archive_placed_by_hand_is_read_without_a_network(record: DatasetRecord, tmp_path: Path) -> None:
    place(tmp_path, record)
    for _ in range(2):  # from the archive, then from what was made of it
        graph = opened(record, tmp_path)
        assert edges_of(graph) == both_ways(SEGMENTS)
        assert graph.y.tolist() == list(range(NODES))
        check_masks(graph, split_masks())
        assert graph.x.shape == (NODES, 67)


def test_coordinates_come_first_and_are_scaled_by_the_training_junctions(tmp_path: Path) -> None:
    place(tmp_path)
    x = opened(PARIS, tmp_path).x
    lowest, highest = -0.9 * math.pi, 0.9 * math.pi
    for start in (0, 16):  # longitude, latitude
        for junction, angle in ((0, lowest), (7, highest), (8, highest + 1.8 * math.pi / 7)):
            expected = [math.sin(angle * 2**power) for power in range(8)]
            expected += [math.cos(angle * 2**power) for power in range(8)]
            # Longitudes are float32 in the file, where 2.7 - 2.0 is off by 1e-7, 48.7 - 48 by 1e-6; times 2^7 pi.
            torch.testing.assert_close(x[junction, start : start + 16], torch.tensor(expected), atol=0.01, rtol=0)
    squares = torch.tensor([0.0, 1, 4, 25, 36, 49])
    expected = (NODE**2 - squares.mean()) / squares.std(correction=0)
    torch.testing.assert_close(x[:, 32:66], expected[:, None].expand(-1, 34), atol=1e-5, rtol=1e-5)
    assert x[:, 66].tolist() == [0] * NODES  # a constant column


def test_the_archive_may_lie_in_the_folder_as_it_was_downloaded(tmp_path: Path) -> None:
    place(tmp_path)
    archive = raw_folder(PARIS, tmp_path) / "paris.tar.gz"
    archive.rename(archive.parents[1] / "paris.tar.gz")
    assert edges_of(opened(PARIS, tmp_path)) == both_ways(SEGMENTS)
    assert edges_of(opened(PARIS, tmp_path)) == both_ways(SEGMENTS)


def test_segments_that_stand_in_the_file_both_ways_stay_as_they_are(tmp_path: Path) -> None:
    place(tmp_path, edge_indices=torch.tensor(both_ways(SEGMENTS)).T)
    assert edges_of(opened(PARIS, tmp_path)) == both_ways(SEGMENTS)


def test_parts_may_be_stored_by_their_indices(tmp_path: Path) -> None:
    place(tmp_path, train_mask=torch.tensor([7, 0, 1, 2, 6, 5]), valid_mask=torch.tensor([8, 3]))
    check_masks(opened(PARIS, tmp_path), split_masks())


def test_data_that_torch_geometric_processed_from_other_features_is_not_trusted(tmp_path: Path) -> None:
    place(tmp_path)
    stock = tmp_path / PARIS.raw.folder / "processed"
    stock.mkdir()
    (stock / "data.pt").write_bytes(b"features of the other kind")
    assert opened(PARIS, tmp_path).x.shape == (NODES, 67)
    assert (stock / "data.pt").is_file()


def careless(path: Path) -> None:
    with tarfile.open(path) as archive:
        for member in archive:
            torch.load(io.BytesIO(archive.extractfile(member).read()), weights_only=False)


@pytest.mark.parametrize("name", ["node_features_augmented", "train_mask"])
def test_a_tensor_that_holds_code_is_refused(name: str, tmp_path: Path) -> None:
    place(tmp_path, **{name: [Code(tmp_path / "it-ran")]})
    check_refused(PARIS, tmp_path, "raw/paris.tar.gz", "it asks for posix.mkdir", careless)


def test_a_member_whose_path_leads_elsewhere_writes_nothing(tmp_path: Path) -> None:
    pack(raw_folder(PARIS, tmp_path) / "paris.tar.gz", {**FILES, "../../../../outside.pt": 1})
    opened(PARIS, tmp_path)
    assert list(tmp_path.rglob("outside.pt")) == []
    assert not (tmp_path.parent / "outside.pt").exists()


def test_an_archive_without_masks_or_with_half_its_bytes_is_set_aside(tmp_path: Path) -> None:
    archive = raw_folder(PARIS, tmp_path) / "paris.tar.gz"
    pack(archive, {name: content for name, content in FILES.items() if "mask" not in name})
    missing = "the archive holds no train_mask.pt, valid_mask.pt, test_mask.pt"
    check_refused(PARIS, tmp_path, "raw/paris.tar.gz", missing)
    archive.with_name("paris.tar.gz.damaged-1").unlink()
    place(tmp_path)
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    check_refused(PARIS, tmp_path, "raw/paris.tar.gz", "EOFError")
