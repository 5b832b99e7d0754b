"""Penn94 and pokec (MATLAB files), Flickr and Yelp (GraphSAINT's files), Reddit (npz in a zip)."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.io import savemat

from graphgps_kmip.data import DatasetRecord, find
from tests.data.sets.raw_files import Code
from tests.data.sets.raw_nodes import (
    NODES,
    both_ways,
    check_masks,
    check_refused,
    compressed,
    edges_of,
    opened,
    raw_folder,
    split_masks,
)

PENN94, POKEC, FLICKR = find("PyG-actor", "Penn94"), find("SNAP", "pokec"), find("PyG-Flickr")
REDDIT, YELP = find("PyG-Reddit"), find("PyG-Yelp")
EDGES = [(0, 1), (2, 1), (9, 4)]
GENDER = np.array([1, 2, 2, 1, 2, 1, 1, 2, 1, 0])  # 0: unknown, in no part
RANDOM = np.random.default_rng(0).standard_normal((NODES, 3))


def links(edges: list[tuple[int, int]]) -> np.ndarray:
    matrix = np.zeros((NODES, NODES))
    matrix[tuple(np.array(edges).T)] = 1
    return matrix


def indices(number: int = 0) -> list[np.ndarray]:
    return [np.flatnonzero(mask) for mask in split_masks(number).values()]


def write_splits(path: Path, more: list[Any] | None = None) -> None:
    splits = [dict(zip(("train", "valid", "test"), indices(number), strict=True)) for number in range(5)]
    np.save(path, np.array([*splits, *(more or [])], dtype=object), allow_pickle=True)


def place_penn94(root: Path, record: DatasetRecord = PENN94) -> Path:
    raw = raw_folder(record, root)
    profile = np.stack([np.arange(NODES) % 2 * 7, GENDER, np.arange(NODES) % 3], axis=1).astype(np.int32)
    friends = scipy.sparse.csc_matrix(links(both_ways(EDGES)))
    savemat(raw / "data.mat", {"A": friends, "local_info": profile})
    write_splits(raw / "fb100-Penn94-splits.npy")
    return raw


def place_pokec(root: Path) -> Path:
    raw = raw_folder(POKEC, root)
    edges = np.array(EDGES, dtype=np.int32).T
    savemat(raw / "pokec.mat", {"edge_index": edges, "node_feat": RANDOM, "label": GENDER - 1})
    write_splits(raw / "pokec-splits.npy")
    return raw


def place_graphsaint(record: DatasetRecord, root: Path, labels: dict[str, Any]) -> Path:
    raw = raw_folder(record, root)
    np.savez(raw / "adj_full.npz", **compressed("", links(EDGES)))
    np.save(raw / "feats.npy", RANDOM)
    (raw / "class_map.json").write_text(json.dumps(labels))
    parts = (part.tolist() for part in indices())
    (raw / "role.json").write_text(json.dumps(dict(zip(("tr", "va", "te"), parts, strict=True))))
    return raw


def place_reddit(root: Path) -> Path:
    raw = raw_folder(REDDIT, root)
    roles = sum(number * mask for number, mask in enumerate(split_masks().values(), start=1))
    np.savez(raw / "reddit_data.npz", feature=RANDOM, label=np.arange(NODES), node_types=roles)
    scipy.sparse.save_npz(raw / "reddit_graph.npz", scipy.sparse.coo_matrix(links(EDGES)))
    return raw


@pytest.mark.parametrize("format", ["PyG-actor", "PyG-Penn94"])
def test_penn94_has_profiles_in_one_hot_form_and_five_splits_of_known_gender(format: str, tmp_path: Path) -> None:
    record = find(format, "Penn94")
    place_penn94(tmp_path, record)
    for number in (0, 4):
        graph = opened(record, tmp_path, number)
        check_masks(graph, split_masks(number))
    assert graph.y.tolist() == (GENDER - 1).tolist()
    expected = [[n % 2 == 0, n % 2 == 1, n % 3 == 0, n % 3 == 1, n % 3 == 2] for n in range(NODES)]
    assert graph.x.tolist() == [list(map(float, row)) for row in expected]
    assert edges_of(graph) == both_ways(EDGES)


def test_pokec_keeps_the_direction_of_friendships_and_has_five_splits(tmp_path: Path) -> None:
    place_pokec(tmp_path)
    for number in (0, 4):
        graph = opened(POKEC, tmp_path, number)
        check_masks(graph, split_masks(number))
    assert graph.y.tolist() == (GENDER - 1).tolist()
    assert graph.x.tolist() == RANDOM.astype(np.float32).tolist()
    assert edges_of(graph) == sorted(EDGES)


def test_flickr_is_read_from_its_four_files(tmp_path: Path) -> None:
    place_graphsaint(FLICKR, tmp_path, {str(node): node % 7 for node in reversed(range(NODES))})
    graph = opened(FLICKR, tmp_path)
    check_masks(graph, split_masks())
    assert graph.y.tolist() == [node % 7 for node in range(NODES)]
    assert graph.x.tolist() == RANDOM.astype(np.float32).tolist()
    assert edges_of(graph) == sorted(EDGES)


def test_yelp_has_several_labels_a_node(tmp_path: Path) -> None:
    labels = {str(node): [int(node % 2 == 0), int(node > 3)] for node in range(NODES)}
    place_graphsaint(YELP, tmp_path, labels)
    graph = opened(YELP, tmp_path)
    check_masks(graph, split_masks())
    assert graph.y.tolist() == list(labels.values())
    assert edges_of(graph) == sorted(EDGES)


@pytest.mark.parametrize("zipped", [False, True])
def test_reddit_is_read_from_its_files_or_from_their_archive(zipped: bool, tmp_path: Path) -> None:
    raw = place_reddit(tmp_path)
    if zipped:
        with zipfile.ZipFile(raw.parent / "reddit.zip", "w") as archive:
            for path in raw.iterdir():
                archive.write(path, path.name)
                path.unlink()
    for _ in range(2):  # from the files, then from what was made of them
        graph = opened(REDDIT, tmp_path)
        check_masks(graph, split_masks())
        assert graph.y.tolist() == list(range(NODES))
        assert graph.x.tolist() == RANDOM.astype(np.float32).tolist()
        assert edges_of(graph) == sorted(EDGES)
    assert (raw.parent / "reddit.zip").exists() == zipped


@pytest.mark.parametrize(("record", "place"), [(PENN94, place_penn94), (POKEC, place_pokec)], ids=["Penn94", "pokec"])
def test_splits_that_hold_code_are_refused(record: DatasetRecord, place: Any, tmp_path: Path) -> None:
    place(tmp_path)
    file = record.raw.files[1]
    write_splits(tmp_path / record.raw.folder / file, [Code(tmp_path / "it-ran")])

    def careless(path: Path) -> None:
        np.load(path, allow_pickle=True)

    check_refused(record, tmp_path, file, "it asks for posix.mkdir", careless)


@pytest.mark.parametrize("record", [FLICKR, YELP], ids=["Flickr", "Yelp"])
def test_features_that_hold_code_are_refused(record: DatasetRecord, tmp_path: Path) -> None:
    raw = place_graphsaint(record, tmp_path, {})
    np.save(raw / "feats.npy", np.array([Code(tmp_path / "it-ran")], dtype=object), allow_pickle=True)
    check_refused(record, tmp_path, "raw/feats.npy", "it asks for posix.mkdir")


def test_labels_of_reddit_that_hold_code_are_refused(tmp_path: Path) -> None:
    raw = place_reddit(tmp_path)
    content = dict(np.load(raw / "reddit_data.npz")) | {"label": np.array([Code(tmp_path / "it-ran")], dtype=object)}
    np.savez(raw / "reddit_data.npz", **content)
    check_refused(REDDIT, tmp_path, "raw/reddit_data.npz", "it asks for posix.mkdir")


def test_a_matlab_file_that_ends_too_early_is_named_and_set_aside(tmp_path: Path) -> None:
    path = place_penn94(tmp_path) / "data.mat"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    check_refused(PENN94, tmp_path, "raw/data.mat", "")
