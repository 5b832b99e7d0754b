"""ShapeNet-Part: text files and lists in their published form, as files and as the archive."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from graphgps_kmip.data import DataError, find
from graphgps_kmip.data.sets.shapenet import ARCHIVE, CATEGORIES, LISTS
from tests.data.sets.raw_clouds import check_refused, check_summary, pack
from tests.data.sets.raw_files import opened

RECORD = find("PyG-ShapeNet", "none")
# Number of an object: its category, and how many points it has. Every category has one.
PARTS = {"train": [3, 0, *range(6, 16)], "val": [1, 4], "test": [5, 2]}


def points(number: int) -> torch.Tensor:
    """Return 9 + number points on a line: position, normal, part."""
    place = torch.arange(9.0 + number)[:, None]
    normal = torch.tensor([0.25, -0.5, number / 8]).expand(len(place), 3)
    return torch.cat([place / 4, place * 0, place * 0 + number, normal, (place + number) % 50], dim=1)


def place(root: Path) -> Path:
    raw = root / "ShapeNet/raw"
    for split, numbers in PARTS.items():
        path = raw / LISTS[split]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([f"shape_data/{CATEGORIES[number]}/object{number}" for number in numbers]))
        for number in numbers:
            file = raw / CATEGORIES[number] / f"object{number}.txt"
            file.parent.mkdir()
            file.write_text(
                "".join(" ".join(f"{value:.6f}" for value in row) + "\n" for row in points(number).tolist())
            )
    return raw


@pytest.mark.parametrize("archived", [False, True])
def test_the_lists_divide_the_objects_of_all_categories(tmp_path: Path, archived: bool) -> None:
    raw = place(tmp_path)
    if archived:
        pack(raw, tmp_path / "ShapeNet" / ARCHIVE)
    dataset = opened(RECORD, tmp_path)
    assert [part.tolist() for part in dataset.splits] == [list(range(12)), [12, 13], [14, 15]]
    for graph, number in zip(dataset.graphs, sum(PARTS.values(), []), strict=True):
        expected = points(number)
        torch.testing.assert_close(graph.x, expected[:, [3, 4, 5, 0, 1, 2]], rtol=0, atol=0)
        assert torch.equal(graph.pos, expected[:, :3])
        assert torch.equal(graph.y, expected[:, 6].long())
        assert graph.edge_attr is None
        assert graph.edge_index[1].bincount().tolist() == [8] * len(expected)
    assert sorted(graph.edge_index[0, :8].tolist()) == list(range(1, 9))  # the first point of the line
    check_summary(dataset, RECORD)
    assert dataset.summary.dim_out == 50


def test_an_object_of_the_lists_that_is_not_there_is_named(tmp_path: Path) -> None:
    raw = place(tmp_path)
    other = raw / CATEGORIES[3] / "object3.txt"
    other.rename(other.with_name("other.txt"))
    with pytest.raises(
        DataError, match=f"^ShapeNet-Part: raw/{CATEGORIES[3]}/object3.txt is missing, and raw/train_te"
    ):
        opened(RECORD, tmp_path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("0 0 0 0 0 1 50\n", "labels must be whole numbers from 0 to 49"),
        ("0 0 0 0 0 1 nan\n", "labels must be"),
        ("0 0 0 0 0 1 0.5\n", "labels must be"),
        ("0 0 0 0 nan 1 3\n", "NaN or infinite"),
        ("0 0 0 0 0 1 1 1\n", "expected 7 columns, found 8"),
        ("", r"found shape \(0, 6\)"),
    ],
)
def test_points_that_cannot_be_right_name_their_file(tmp_path: Path, line: str, reason: str) -> None:
    path = place(tmp_path) / CATEGORIES[4] / "object4.txt"
    path.write_text(line * 3)
    check_refused(RECORD, tmp_path, path, reason)


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    path = place(tmp_path) / CATEGORIES[4] / "object4.txt"
    path.write_text(path.read_text()[:-30])
    check_refused(RECORD, tmp_path, path, "columns")
