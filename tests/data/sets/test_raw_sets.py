"""Every data set from tiny raw files in their published form: the graphs in them, archives, code and damage in them."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.datasets import LRGBDataset

from graphgps_kmip.data import DataError, DatasetInfo, DatasetRecord, datasets, find
from graphgps_kmip.data.dataset_info import summarize
from graphgps_kmip.data.dataset_record import mismatches
from tests.data.sets import raw_graphs, raw_nodes
from tests.data.sets.raw_files import Code, opened, pack
from tests.data.sets.raw_graphs import same

SPLITS = ("train", "val", "test")
CLOUDS = {"PyG-ShapeNet": 8, "PyG-S3DIS": 32, "PyG-S3DISOnDisk": 32} | {
    f"PyG-ModelNet{classes}{ending}": 8 for classes in (10, 40) for ending in ("", "OnDisk")
}


def each(records: list[DatasetRecord]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("record", records, ids=lambda record: record.key)


def check_node_set(record: DatasetRecord, root: Path, expected: raw_nodes.Expected) -> None:
    for number in expected.numbers * 2:  # from the raw files, then from what was made of them
        dataset = opened(record, root, split_index=number)
        graph = dataset.graphs[0]
        assert sorted(map(tuple, graph.edge_index.T.tolist())) == expected.edges
        assert graph.y.tolist() == np.asarray(expected.y).tolist()
        if expected.x is not None:
            assert graph.x.tolist() == np.asarray(expected.x).tolist()
        if expected.masks is None:
            assert [int(graph[f"{split}_mask"].sum()) for split in SPLITS] == [6, 2, 2]
            continue
        for split in SPLITS:
            assert graph[f"{split}_mask"].tolist() == expected.masks(number)[f"{split}_mask"].tolist()
    DatasetInfo.of(dataset, record)


@each(raw_nodes.RECORDS)
def test_raw_files_become_the_graph_with_its_official_splits(record: DatasetRecord, tmp_path: Path) -> None:
    expected = raw_nodes.place(record, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # WikiCS's class warns unless an argument says which edges to give
        check_node_set(record, tmp_path, expected)
    assert not list(tmp_path.parent.rglob("outside.pt"))
    with pytest.raises(ValueError, match=rf"{record.title} has \d+ splits, numbered from 0, got 99"):
        opened(record, tmp_path, split_index=99)


def check_graphs(record: DatasetRecord, root: Path, expected: raw_graphs.Expected) -> None:
    for _ in range(2):  # from the raw files, then from what was made of them
        dataset = opened(record, root)
        assert len(dataset) == len(expected.graphs)
        if expected.splits:
            assert [part.tolist() for part in dataset.splits] == expected.splits
        assert sorted(torch.cat(list(dataset.splits)).unique().tolist()) == list(range(len(dataset)))
        for graph, values in zip(dataset.graphs, expected.graphs, strict=True):
            for key, value in values.items():
                assert same(getattr(graph, key), value), key
            if record.format in CLOUDS:
                degree = min(CLOUDS[record.format], graph.num_nodes - 1)
                assert graph.edge_index[1].bincount().tolist() == [degree] * graph.num_nodes
    assert dataset.summary in (None, summarize(dataset, record))
    info = DatasetInfo.of(dataset, record)
    dim_out = 1 if record.level == "link" else record.features.classes
    assert (info.sizes, info.dim_out) == (tuple(map(len, dataset.splits)), dim_out)


@each(raw_graphs.RECORDS)
def test_raw_files_become_the_graphs_in_their_official_parts(record: DatasetRecord, tmp_path: Path) -> None:
    check_graphs(record, tmp_path, raw_graphs.place(record, tmp_path))


INSIDE = {"ZINC": "molecules", "AQSOL": "asqol_graph_raw", "ModelNet10": "ModelNet10", "ShapeNet": "any"}
ONE_EACH = {record.raw.folder: record for record in raw_graphs.RECORDS if record.raw.archives}


def pack_all(record: DatasetRecord, root: Path) -> None:
    folder, archives = root / record.raw.folder, record.raw.archives
    if record.raw.home == "CityNetwork":  # it is the raw file
        (folder / record.raw.files[0]).rename(folder / archives[0])
    elif record.raw.home == "MalNetTiny":
        for name, archive in zip(("malnet-graphs-tiny", "split_info_tiny"), archives, strict=True):
            pack(folder / "raw" / name, folder / archive, name)
    else:
        inside = LRGBDataset.dwnld_file_name[record.raw.base] if record.raw.home == "LRGBDataset" else ""
        inside = inside or record.raw.inside or INSIDE.get(record.raw.home, "")
        pack(folder if record.raw.inside else folder / "raw", folder / archives[0], inside)


@each([*ONE_EACH.values(), *(record for record in raw_nodes.RECORDS if record.raw.archives)])
def test_the_archive_as_downloaded_will_do_and_stays_where_it_is(record: DatasetRecord, tmp_path: Path) -> None:
    node = record.level == "node"
    expected: Any = (raw_nodes if node else raw_graphs).place(record, tmp_path)
    pack_all(record, tmp_path)
    (check_node_set if node else check_graphs)(record, tmp_path, expected)
    assert (tmp_path / record.raw.folder / record.raw.archives[0]).exists()


def objects(code: Code) -> np.ndarray:
    return np.array([code], dtype=object)


HOSTILE: dict[str, tuple[Callable[[Path, Code], Any], Callable[[Path], Any]]] = {
    ".pt": (lambda path, code: torch.save([code], path), lambda path: torch.load(path, weights_only=False)),
    ".npz": (lambda path, code: np.savez(path, x=objects(code)), lambda path: np.load(path, allow_pickle=True)["x"]),
    ".npy": (lambda path, code: np.save(path, objects(code)), lambda path: np.load(path, allow_pickle=True)),
    ".pickle": (
        lambda path, code: path.write_bytes(pickle.dumps([code])),
        lambda path: pickle.loads(path.read_bytes()),
    ),
}
KINDS = {".pkl": ".pickle", ".allx": ".pickle", ".graph": ".pickle"}


def readable(record: DatasetRecord) -> list[tuple[DatasetRecord, str, str]]:
    """Return a raw file of each kind that could hold code."""
    files = {
        KINDS.get(end := Path(file).suffix, end): file for file in record.raw.files if file not in record.raw.unread
    }
    return [(record, file, kind) for kind, file in files.items() if kind in HOSTILE]


FOLDERS = {record.raw.folder: record for record in datasets().values() if record.raw}


@pytest.mark.parametrize(
    ("record", "file", "kind"),
    [case for record in FOLDERS.values() for case in readable(record)],
    ids=lambda value: getattr(value, "title", value),
)
def test_a_raw_file_that_would_run_code_is_refused_by_name_and_nothing_runs(
    record: DatasetRecord, file: str, kind: str, tmp_path: Path
) -> None:
    write_code, careless = HOSTILE[kind]
    path, proof = tmp_path / record.raw.folder / file, tmp_path / "it-ran"
    if record.format != "BREC":
        (raw_nodes if record.level == "node" else raw_graphs).place(record, tmp_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_code(path, Code(proof))
    with pytest.raises(DataError, match=r"cannot be used \(it asks for posix\.mkdir, which ") as error:
        opened(record, tmp_path)
    assert Path(file).name in str(error.value)
    assert not proof.exists()
    careless(path.with_name(f"{path.name}.damaged-1"))
    assert proof.exists(), "it runs where nobody is careful"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


NAMED = {  # a file of which half is missing is named and set aside...
    ("PyG-GNNBenchmarkDataset", "PATTERN"): "raw/PATTERN_v2.pt",
    ("PyG-Planetoid", "CiteSeer"): "raw/ind.citeseer.ally",
    ("PyG-ZINC", "subset"): "raw/val.pickle",
    ("PyG-Heterophilous", "Tolokers"): "raw/tolokers.npz",
    ("PyG-CityNetwork", "Paris"): "raw/paris.tar.gz",
    ("OGB", "ogbg-molhiv"): "raw/node-feat.csv.gz",
    ("OGB", "ogbg-ppa"): "raw/edge-feat.csv.gz",
    ("PyG-S3DIS", ""): "raw/ply_data_all_3.h5",
    ("PyG-ShapeNet", ""): "raw/03001627/object4.txt",
    ("PyG-ModelNet10", ""): "raw/bed/train/bed_0004.off",
}
TOGETHER = {  # ...and where the loading class does not tell which it is, all are
    ("PyG-WikiCS", ""): "raw/data.json",
    ("PyG-actor", "Penn94"): "raw/data.mat",
}


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("key", [*NAMED, *TOGETHER], ids="/".join)
def test_half_a_raw_file_is_one_line_that_names_it(key: tuple[str, str], tmp_path: Path) -> None:
    record = find(*key)
    (raw_nodes if record.level == "node" else raw_graphs).place(record, tmp_path)
    path = tmp_path / record.raw.folder / (NAMED | TOGETHER)[key]
    cut(path)
    with pytest.raises(DataError, match=f"{record.title}: .*{path.name}") as error:
        opened(record, tmp_path)
    assert "\n" not in str(error.value)
    assert path.exists() == (key in TOGETHER)
    assert path.with_name(f"{path.name}.damaged-1").exists() == (key in NAMED)


MISSING = {
    ("PyG-MalNetTiny", "LocalDegreeProfile"): "raw/malnet-graphs-tiny/trojan/a/T2.edgelist",
    ("PyG-TUDataset", "ENZYMES"): "raw/ENZYMES_node_labels.txt",
    ("OGB", "ogbg-molhiv"): "raw/num-node-list.csv.gz",
    ("PyG-S3DIS", ""): "raw/ply_data_all_3.h5",
    ("PyG-ShapeNet", ""): "raw/03001627/object4.txt",
}


@pytest.mark.parametrize("key", MISSING, ids="/".join)
def test_a_raw_file_that_is_not_there_is_named(key: tuple[str, str], tmp_path: Path) -> None:
    record = find(*key)
    raw_graphs.place(record, tmp_path)
    path = tmp_path / record.raw.folder / MISSING[key]
    path.rename(path.with_name("elsewhere.txt"))
    with pytest.raises(DataError, match=f"{record.title}: .*{MISSING[key]}"):
        opened(record, tmp_path)


@pytest.mark.parametrize("key", [("OGB", "ogbg-molhiv"), ("PyG-TUDataset", "NCI1")], ids="/".join)
@pytest.mark.parametrize("damage", ["half", "another set"])
def test_an_archive_that_cannot_be_used_is_named_and_set_aside(
    key: tuple[str, str], damage: str, tmp_path: Path
) -> None:
    record = find(*key)
    raw_graphs.place(record, tmp_path)
    archive = tmp_path / record.raw.folder / record.raw.archives[0]
    if damage == "half":
        pack_all(record, tmp_path)
        cut(archive)
    else:
        path = tmp_path / record.raw.folder
        for file in path.rglob("*"):
            file.rename(file.with_name(f"other-{file.name}")) if file.is_file() else None
        pack(path, archive, "other")
    with pytest.raises(DataError, match=rf"{archive.name} cannot be used \(.*renamed to {archive.name}.damaged-1"):
        opened(record, tmp_path)


PUBLISHED = {
    ("PyG-Planetoid", "Cora"): 1,
    ("PyG-Planetoid", "CiteSeer"): 1,
    ("PyG-Heterophilous", "Minesweeper"): 10,
    ("PyG-Heterophilous", "Tolokers"): 10,
    ("BREC", "brec"): 1,
}


@pytest.mark.dataset
@pytest.mark.parametrize("key", PUBLISHED, ids="/".join)
def test_the_real_files_hold_what_was_published(key: tuple[str, str], real_data: Path, tmp_path: Path) -> None:
    record = find(*key)
    raw = tmp_path / record.raw.folder / "raw"
    raw.mkdir(parents=True)
    for file in (real_data / record.raw.folder / "raw").iterdir():
        (raw / file.name).symlink_to(file)
    for number in range(PUBLISHED[key]):
        dataset = opened(record, tmp_path, split_index=number)
        assert mismatches(record, DatasetInfo.of(dataset, record)) == []
    if record.title == "CiteSeer":
        degree = torch.bincount(dataset[0].edge_index[1], minlength=dataset[0].num_nodes)
        assert int((degree == 0).sum()) == 48
