"""Point clouds on disk: what is read is what was written, one cloud in memory at a time, one connection per process."""

from __future__ import annotations

import os
import pickle
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from graphgps_kmip.data import point_clouds
from graphgps_kmip.data.point_clouds import Cloud, CloudGraphs, CloudSource
from graphgps_kmip.encoding.knn import nearest_neighbors

CLASSES, K = 4, 3
SIZES = [7, 2, 30, 1, 12, 9, 5, 8, 6]  # fewer points than k, and a single one, among them
PARTS = ["train"] * 6 + ["test"] * 2 + ["train"]


def cloud(number: int) -> Cloud:
    rng = np.random.default_rng(number)
    x = rng.integers(0, 3, (SIZES[number % len(SIZES)], 5)).astype(np.float32)  # many ties
    return Cloud(x, rng.integers(0, CLASSES, len(x)), PARTS[number % len(PARTS)], Path())


def read(_raw: Path, clouds: tuple[int, ...]) -> Iterator[Cloud]:
    return (cloud(number) for number in clouds)


def source(clouds: int = len(SIZES), reader: Callable[[Path], Iterator[Cloud]] | None = None) -> CloudSource:
    return CloudSource(reader or partial(read, clouds=tuple(range(clouds))), 5, 1, CLASSES, K)


@pytest.fixture
def home(tmp_path: Path) -> str:
    return str(tmp_path)


def same(left: object, right: object) -> bool:
    return all(torch.equal(left[key], right[key]) for key in ("x", "pos", "y", "edge_index", "edge_attr"))


def test_what_is_read_is_what_was_written_with_the_nearest_neighbours(home: str) -> None:
    dataset = CloudGraphs(home, source(), distance=True)
    assert len(dataset) == len(SIZES)
    for number, graph in enumerate(dataset):
        x, y, *_ = cloud(number)
        assert (graph.x.dtype, graph.y.dtype, graph.edge_index.dtype) == (torch.float32, torch.int64, torch.int64)
        assert graph.x.tolist() == x.tolist()
        assert graph.pos.tolist() == x[:, 1:4].tolist()
        assert graph.y.tolist() == y.tolist()
        neighbors = nearest_neighbors(x[:, 1:4], K)
        assert graph.edge_index[0].tolist() == neighbors.reshape(-1).tolist()
        assert graph.edge_index[1].tolist() == [point for point in range(len(x)) for _ in range(neighbors.shape[1])]
    assert dataset.num_points.tolist() == SIZES


def test_coordinates_may_be_changed_without_the_features_and_neither_changes_the_next_reading(home: str) -> None:
    dataset = CloudGraphs(home, source())
    graph = dataset[2]
    graph.pos *= 2
    assert graph.x.tolist() == cloud(2).x.tolist()
    graph.x += 5
    assert dataset[2].x.tolist() == cloud(2).x.tolist()


def test_neighbours_kept_on_disk_give_the_same_graphs_and_are_not_searched_again(
    home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list(CloudGraphs(home, source(), distance=True))
    CloudGraphs(home, source(), cache=True)
    monkeypatch.setattr("graphgps_kmip.data.point_clouds.nearest_neighbors", None)
    stored = CloudGraphs(home, source(), distance=True, cache=True)
    assert all(same(left, right) for left, right in zip(stored, expected, strict=True))
    row = stored._neighbors[2]["neighbors"]
    assert (row.dtype, row.numel()) == (torch.int32, 30 * K)


def test_clouds_are_written_while_they_are_read(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point_clouds, "BATCH", 4)
    seen, most = [], []

    def watched(_raw: Path) -> Iterator[Cloud]:
        for number in range(40):
            new_cloud = cloud(number)
            seen.append(weakref.ref(new_cloud.x))
            most.append(sum(ref() is not None for ref in seen))
            yield new_cloud

    assert len(CloudGraphs(home, source(reader=watched))) == 40
    assert max(most) <= 2 * 4 + 1  # a batch that is being written, the next one


def test_a_kill_while_writing_leaves_no_file_of_points(home: str) -> None:
    def killed(_raw: Path) -> Iterator[Cloud]:
        yield from (cloud(number) for number in range(40))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CloudGraphs(home, source(reader=killed))
    assert not (Path(home) / "processed/points.db").exists()
    assert len(CloudGraphs(home, source())) == len(SIZES)


class Owner(Dataset):
    """Tells which process reads, and whether its connection is the one that the parent opened."""

    def __init__(self, clouds: CloudGraphs) -> None:
        self.clouds, self.parent = clouds, clouds._points.database

    def __len__(self) -> int:
        return len(self.clouds)

    def __getitem__(self, index: int) -> tuple[int, bool, float]:
        return os.getpid(), self.clouds._points.database is self.parent, float(self.clouds[index].x.sum())


def test_a_forked_worker_opens_its_own_connection(home: str) -> None:
    clouds = CloudGraphs(home, source())
    sums = [float(graph.x.sum()) for graph in clouds]
    loader = DataLoader(Owner(clouds), batch_size=None, num_workers=2, multiprocessing_context="fork")
    processes, shared, result = zip(*loader, strict=True)
    assert len(set(processes)) == 2
    assert os.getpid() not in processes
    assert not any(shared)
    assert list(result) == sums
    assert float(clouds[0].x.sum()) == sums[0]


def test_pickling_leaves_the_connection_behind(home: str) -> None:
    clouds = CloudGraphs(home, source(), distance=True, cache=True)
    copy = pickle.loads(pickle.dumps(clouds))
    assert same(copy[4], clouds[4])
    assert copy._points.database is not clouds._points.database


def test_too_few_training_clouds_to_draw_from_are_refused(home: str) -> None:
    def few(_raw: Path) -> Iterator[Cloud]:
        return (cloud(number)._replace(part=part) for number, part in enumerate(("train", "test")))

    with pytest.raises(ValueError, match="1 of 1 training clouds cannot validate"):
        CloudGraphs(home, source(reader=few))


@pytest.mark.parametrize("damage", [lambda content: content[: len(content) // 2], lambda content: b"?" * len(content)])
def test_a_damaged_database_is_named_with_the_fix(home: str, damage: Callable[[bytes], bytes]) -> None:
    CloudGraphs(home, source(400))
    path = Path(home) / "processed/points.db"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        ValueError, match=rf"{path}: row 399 cannot be read \(.*\): remove the folder .*processed and st"
    ):
        CloudGraphs(home, source())
