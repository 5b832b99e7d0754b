"""Long Range Graph Benchmark: raw files in their published form, through torch_geometric's class."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch
from torch_geometric.datasets import LRGBDataset

from graphgps_kmip.data import DatasetInfo, DatasetRecord, GraphDataset, find
from graphgps_kmip.data.sets.lrgb import ATOM, BOND, RECORDS
from tests.data.sets.raw_files import Code, opened
from tests.data.sets.raw_molecules import check_refused, pack, write

VOC, COCO, FUNC, STRUCT, CONTACT = RECORDS
SIZES = (3, 2, 1)  # graphs of the three parts
EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
LABELS = [[0, 13, 90], [27, 1, 0]]  # of the superpixels of even and odd graphs; in COCO-SP 12 is not in use


def graph(record: DatasetRecord, number: int) -> tuple[Any, ...]:
    """Return one raw graph of three nodes, made from its number."""
    features, generator = record.features, torch.Generator().manual_seed(number)
    if record.level == "inductive_node":
        labels = LABELS[number % 2] if record is COCO else [number, 20, 0]
        kinds = (list, np.array, torch.tensor)  # labels are read from any of these
        x = torch.randn(3, features.node, generator=generator, dtype=torch.float64)
        weights = torch.randn(4, features.edge, generator=generator, dtype=torch.float64)
        return x, weights, EDGES, kinds[number % 3](labels)
    x, kinds = (columns(sizes, rows, generator) for sizes, rows in ((features.node, 3), (features.edge, 4)))
    if record is CONTACT:
        pairs = torch.tensor([[0, 2, number % 3], [2, 0, 1]])
        return x, kinds, EDGES, pairs, torch.tensor([1, 1, 0], dtype=torch.int32)
    factor = min(number, 1) if record.task_type == "classification_multilabel" else number
    return x, kinds, EDGES, torch.arange(features.classes)[None] % 2 * float(factor)


def columns(sizes: tuple[int, ...], rows: int, generator: torch.Generator) -> Tensor:
    return torch.stack([torch.randint(size, (rows,), generator=generator) for size in sizes], dim=1)


def place(record: DatasetRecord, root: Path) -> list[tuple[Any, ...]]:
    """Write the raw files of six graphs and return these."""
    graphs = [graph(record, number) for number in range(sum(SIZES))]
    for file, part in zip(record.raw.files, (graphs[:3], graphs[3:5], graphs[5:]), strict=True):
        write(root / record.raw.folder / file, part)
    return graphs


def check(dataset: GraphDataset, graphs: list[tuple[Any, ...]]) -> None:
    assert [part.tolist() for part in dataset.splits] == [[0, 1, 2], [3, 4], [5]]
    for read, (x, edge_attr, edge_index, *_) in zip(dataset.graphs, graphs, strict=True):
        floats = x.is_floating_point()
        torch.testing.assert_close(read.x, x.float() if floats else x, rtol=0, atol=0)
        torch.testing.assert_close(read.edge_attr, edge_attr.float() if floats else edge_attr, rtol=0, atol=0)
        torch.testing.assert_close(read.edge_index, edge_index, rtol=0, atol=0)


@pytest.mark.parametrize("record", RECORDS[:4], ids=lambda record: record.title)
def test_the_raw_files_become_graphs_in_three_parts(record: DatasetRecord, tmp_path: Path) -> None:
    graphs = place(record, tmp_path)
    dataset = opened(record, tmp_path)
    check(dataset, graphs)
    for read, raw in zip(dataset.graphs, graphs, strict=True):
        if record is not COCO:
            torch.testing.assert_close(read.y, torch.as_tensor(raw[3]), rtol=0, atol=0)
    info = DatasetInfo.of(dataset, record)
    width, edge_width = (
        size if isinstance(size, int) else len(size) for size in (record.features.node, record.features.edge)
    )
    assert (info.dim_in, info.dim_edge, info.dim_out) == (width, edge_width, record.features.classes)
    assert (info.sizes, info.directed) == (SIZES, False)


def test_the_classes_of_coco_are_numbered_without_gaps(tmp_path: Path) -> None:
    place(COCO, tmp_path)
    assert [read.y.tolist() for read in opened(COCO, tmp_path).graphs] == [[0, 12, 80], [25, 1, 0]] * 3


def test_a_molecule_of_pcqm_contact_carries_its_labelled_pairs(tmp_path: Path) -> None:
    graphs = place(CONTACT, tmp_path)
    dataset = opened(CONTACT, tmp_path)
    check(dataset, graphs)
    for read, raw in zip(dataset.graphs, graphs, strict=True):
        assert read.edge_label_index.tolist() == raw[3].tolist()
        assert read.edge_label.tolist() == [1, 1, 0]
        assert read.y is None
    batch = Batch.from_data_list([dataset[0], dataset[1]])
    assert batch.edge_label_index.tolist() == [[0, 2, 0, 3, 5, 4], [2, 0, 1, 5, 3, 4]]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.title)
def test_the_archive_as_downloaded_will_do(record: DatasetRecord, tmp_path: Path) -> None:
    graphs = place(record, tmp_path)
    folder = tmp_path / record.raw.folder
    assert f"/{record.raw.archives[0]}?" in LRGBDataset.urls[record.raw.base]
    pack(
        folder / "raw",
        folder / record.raw.archives[0],
        LRGBDataset.dwnld_file_name[record.raw.base],
        [Path(file).name for file in record.raw.files],
    )
    check(opened(record, tmp_path), graphs)
    assert (folder / record.raw.archives[0]).exists()


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.title)
def test_a_raw_file_that_would_run_code_is_refused(record: DatasetRecord, tmp_path: Path) -> None:
    graphs = place(record, tmp_path)
    check_refused(record, tmp_path, Path(record.raw.files[1]).name, [graphs[0], Code(tmp_path / "it-ran")])


class Storage:
    """What plain pickle writes for the storage of a tensor, with code inside."""

    def __init__(self, code: Code, zipped: bool) -> None:
        file = io.BytesIO()
        torch.save(code, file, _use_new_zipfile_serialization=zipped)
        self.content = file.getvalue()

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.storage._load_from_bytes, (self.content,)


@pytest.mark.parametrize("zipped", [False, True])
def test_code_in_the_storage_of_a_tensor_is_refused(zipped: bool, tmp_path: Path) -> None:
    x, *others = place(VOC, tmp_path)[0]
    check_refused(VOC, tmp_path, "train.pickle", [(Storage(Code(tmp_path / "it-ran"), zipped), *others)])


def test_the_vocabularies_of_molecules_are_those_of_ogb() -> None:
    from ogb.utils.features import get_atom_feature_dims, get_bond_feature_dims

    assert (ATOM, BOND) == (tuple(get_atom_feature_dims()), tuple(get_bond_feature_dims()))


def test_the_public_names_lead_to_the_records() -> None:
    assert find("PyG-VOCSuperpixels", "edge_wt_region_boundary").title == "PascalVOC-SP"
    assert find("PyG-COCOSuperpixels", "edge_wt_region_boundary").title == "COCO-SP"
    titles = [find("OGB", f"peptides-{name}").title for name in ("functional", "structural")]
    assert titles == ["Peptides-func", "Peptides-struct"]
    assert find("OGB", "PCQM4Mv2Contact-shuffle").title == "PCQM-Contact"
    with pytest.raises(ValueError, match="has no 'edge_wt_only_coord'"):
        find("PyG-VOCSuperpixels", "edge_wt_only_coord")


def test_the_official_sizes_add_up_to_the_number_of_graphs() -> None:
    assert [sum(record.statistics.sizes) for record in RECORDS] == [record.statistics.graphs for record in RECORDS]
