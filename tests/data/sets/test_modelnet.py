"""ModelNet: OFF files as they are found in the archives, good and bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphgps_kmip.data import DataError, DatasetRecord, find
from graphgps_kmip.data.sets.modelnet import CLASSES, vertices
from tests.data.sets.raw_clouds import check_refused, check_summary, pack
from tests.data.sets.raw_files import opened

SMALL, LARGE = find("PyG-ModelNet10"), find("PyG-ModelNet40")
TRAIN, TEST = 3, 1  # models of each class
FACES = "3 0 1 2\n4 0 1 2 3\n"


def points(number: int) -> list[list[float]]:
    """Return 9 to 12 vertices on a curve, the last one twice."""
    places = [[i / 4, float(i * i), number / 8] for i in range(8 + number % 4)]
    return [*places, places[-1]]


def mesh(number: int, head: str = "OFF\n{} 2 0\n") -> str:
    rows = points(number)
    return head.format(len(rows)) + "".join(f"{x} {y} {z}\n" for x, y, z in rows) + FACES


def place(root: Path, classes: int) -> Path:
    raw = root / f"ModelNet{classes}" / "raw"
    number = 0
    for name in CLASSES[classes]:
        for part, count in (("train", TRAIN), ("test", TEST)):
            (raw / name / part).mkdir(parents=True)
            for _ in range(count):
                (raw / name / part / f"{name}_{number:04}.off").write_text(mesh(number))
                number += 1
    return raw


@pytest.mark.parametrize("record", [SMALL, LARGE, find("PyG-ModelNet10OnDisk")], ids=lambda record: record.format)
def test_vertices_labels_and_the_official_test_models(tmp_path: Path, record: DatasetRecord) -> None:
    classes = record.features.classes
    place(tmp_path, classes)
    dataset = opened(record, tmp_path)
    assert dataset.splits.test.tolist() == list(range(3, 4 * classes, 4))
    assert len(dataset.splits.val) == len(dataset.splits.test)
    assert sorted(torch.cat(list(dataset.splits)).tolist()) == list(range(4 * classes))
    for number in (0, 1, 7, 4 * classes - 1):
        graph = dataset.graphs[number]
        assert graph.x.tolist() == graph.pos.tolist() == points(number)
        assert graph.y.tolist() == [number // 4]
        assert graph.edge_index[1].bincount().tolist() == [8] * len(points(number))
        assert (graph.edge_attr is not None) == bool(record.features.edge)
    check_summary(dataset, record)
    assert dataset.summary.dim_out == classes


def test_the_archive_is_used_where_it_lies(tmp_path: Path) -> None:
    pack(place(tmp_path, 10), tmp_path / "ModelNet10/ModelNet10.zip")
    assert opened(SMALL, tmp_path).graphs[4].y.tolist() == [1]
    assert (tmp_path / "ModelNet10/ModelNet10.zip").exists()
    assert (tmp_path / "ModelNet10/raw/bed/train/bed_0004.off").exists()


@pytest.mark.parametrize(
    "head",
    [
        "OFF\n{} 2 0\n",
        "OFF{} 2 0\n",
        "OFF {} 2 0\n",
        "# from a tool\nOFF # header\n\n{} 2 0\n# vertices\n",
        "OFF\r\n{} 2 0\r\n",
    ],
    ids=["plain", "glued", "one line", "comments", "windows"],
)
def test_every_form_of_the_header_is_read(tmp_path: Path, head: str) -> None:
    path = tmp_path / "one.off"
    path.write_bytes(mesh(2, head).encode())
    assert vertices(path).tolist() == points(2)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("ply\nformat ascii 1.0\n", "begins with OFF, this one with 'ply'"),
        (mesh(1)[: mesh(1).index("3 0 1 2")].rsplit("\n", 2)[0], "it says 10 vertices and holds 9"),
        ("OFF\n3 0 0\n0 0 0\n0 0 nan\n1 1 1\n", "NaN"),
        ("OFF\n0 0 0\n", "found shape \\(0, 3\\)"),
        ("OFF\nmany\n", "invalid literal"),
        ("OFF\n3 0 0\n0 0\n1 1\n2 2\n", "expected 3 columns, found 2"),
        ("OFF\n-3 0 0\n", "islice"),
    ],
    ids=["no OFF", "cut off", "NaN", "no vertices", "no counts", "two columns", "negative"],
)
def test_a_file_that_cannot_be_right_is_named(tmp_path: Path, content: str, reason: str) -> None:
    path = place(tmp_path, 10) / "bed/train/bed_0004.off"
    path.write_text(content)
    check_refused(SMALL, tmp_path, path, reason)


def test_a_class_without_models_is_named(tmp_path: Path) -> None:
    raw = place(tmp_path, 10)
    next((raw / "sofa/test").glob("*.off")).unlink()
    with pytest.raises(DataError, match="^ModelNet10: raw/sofa/test holds no .off files"):
        opened(SMALL, tmp_path)
