"""S3DIS: h5 files and lists in their published form, as files and as the archive."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from graphgps_kmip.data import DataError, find
from graphgps_kmip.data.sets.s3dis import ARCHIVE, BLOCKS
from tests.data.sets.raw_clouds import check_refused, check_summary, pack
from tests.data.sets.raw_files import opened

PLAIN, DISTANCES = find("PyG-S3DIS"), find("PyG-S3DISOnDisk")
NUM = 40  # points of a block
AREAS = [1, 6, 2, 3, 4, 5] * 8  # of the 48 blocks, two in each of the 24 files


def block(number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return rng.random((NUM, 9), dtype=np.float32), rng.integers(0, 13, NUM).astype(np.uint8)


def place(root: Path) -> Path:
    raw = root / "S3DIS/raw"
    raw.mkdir(parents=True)
    (raw / "all_files.txt").write_text("".join(f"indoor3d_sem_seg_hdf5_data/{name}\n" for name in BLOCKS))
    (raw / "room_filelist.txt").write_text("".join(f"Area_{area}_office_{area}\n" for area in AREAS))
    for number, name in enumerate(BLOCKS):
        with h5py.File(raw / name, "w") as file:
            data, label = zip(block(2 * number), block(2 * number + 1), strict=True)
            file.create_dataset("data", data=np.stack(data), compression="gzip")
            file.create_dataset("label", data=np.stack(label), compression="gzip")
    return raw


@pytest.mark.parametrize("archived", [False, True])
def test_blocks_keep_their_nine_columns_and_area_six_tests(tmp_path: Path, archived: bool) -> None:
    raw = place(tmp_path)
    if archived:
        pack(raw, tmp_path / "S3DIS" / ARCHIVE)
    dataset = opened(PLAIN, tmp_path)
    assert dataset.splits.test.tolist() == [number for number, area in enumerate(AREAS) if area == 6]
    for number in (0, 1, 17, 47):
        (x, y), graph = block(number), dataset.graphs[number]
        assert torch.equal(graph.x, torch.from_numpy(x))
        assert torch.equal(graph.pos, torch.from_numpy(x[:, :3]))
        assert graph.y.tolist() == y.tolist()
        assert graph.edge_attr is None
        assert graph.edge_index[1].bincount().tolist() == [32] * NUM
        assert dataset.graphs.label_counts[number].tolist() == np.bincount(y, minlength=13).tolist()
    check_summary(dataset, PLAIN)


def test_the_second_record_has_the_distances_and_shares_what_was_prepared(tmp_path: Path) -> None:
    place(tmp_path)
    plain, dataset = opened(PLAIN, tmp_path), opened(DISTANCES, tmp_path)
    graph = dataset.graphs[5]
    assert torch.equal(graph.edge_index, plain.graphs[5].edge_index)
    source, target = graph.edge_index
    torch.testing.assert_close(graph.edge_attr, (graph.pos[source] - graph.pos[target]).norm(dim=1)[:, None])
    assert [part.tolist() for part in dataset.splits] == [part.tolist() for part in plain.splits]
    assert sorted(path.name for path in (tmp_path / "S3DIS/processed").glob("*.db")) == ["points.db"]
    check_summary(dataset, DISTANCES)


def test_neighbours_are_kept_on_disk_on_request_also_when_the_points_are_prepared_already(tmp_path: Path) -> None:
    place(tmp_path)
    cached = replace(DISTANCES, load=partial(DISTANCES.load, cache=True))
    expected = list(opened(DISTANCES, tmp_path).graphs)
    kept = opened(cached, tmp_path).graphs
    assert (tmp_path / "S3DIS/processed/neighbors-32.db").exists()
    for one, other in zip(kept, expected, strict=True):
        assert torch.equal(one.edge_index, other.edge_index)
        assert torch.equal(one.edge_attr, other.edge_attr)


def test_as_many_random_training_blocks_validate_as_test_whatever_the_seed(tmp_path: Path) -> None:
    splits = []
    for seed in (0, 7):
        place(tmp_path / str(seed))
        splits.append([part.tolist() for part in opened(PLAIN, tmp_path / str(seed), seed=seed).splits])
    assert splits[0] == splits[1]
    train, val, test = splits[0]
    assert (len(train), len(val), len(test)) == (32, 8, 8)
    assert sorted(train + val + test) == list(range(48))
    assert val == sorted(val)
    assert val != sorted(train + val)[:8]  # drawn, not the first ones
    other = opened(PLAIN, tmp_path / "7", seed=7, split_mode="random")
    assert other.splits.test.tolist() != test
    assert other.summary is not None


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    path = place(tmp_path) / BLOCKS[3]
    path.write_bytes(path.read_bytes()[:900])
    check_refused(PLAIN, tmp_path, path, "truncated")


def test_a_file_of_the_list_that_is_not_there_is_named(tmp_path: Path) -> None:
    raw = place(tmp_path)
    (raw / "all_files.txt").write_text("folder/ply_data_all_99.h5\n")
    with pytest.raises(DataError, match=r"^S3DIS: raw/ply_data_all_99\.h5 is missing, and raw/all_files.txt lists it"):
        opened(PLAIN, tmp_path)


@pytest.mark.parametrize(("count", "words"), [(49, "49 rooms for 48 blocks"), (47, "1 rooms left")])
def test_rooms_that_do_not_fit_the_blocks_are_refused(tmp_path: Path, count: int, words: str) -> None:
    rooms = place(tmp_path) / "room_filelist.txt"
    rooms.write_text("Area_1_office_1\n" * count)
    with pytest.raises(DataError, match=words):
        opened(PLAIN, tmp_path)


def test_without_h5py_the_error_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match="^S3DIS: .*pip install h5py"):
        opened(PLAIN, tmp_path)
