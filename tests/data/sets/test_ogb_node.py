"""Open Graph Benchmark, nodes: raw files in their published form, read as ogb itself reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphgps_kmip.data import DatasetInfo, DatasetRecord, find
from graphgps_kmip.data.sets.ogb import NODES
from tests.data.sets.raw_files import opened
from tests.data.sets.raw_ogb import Rows, pack, write_tables

ARXIV, PRODUCTS, PROTEINS = NODES
WEIGHTS = [[number + column / 8 for column in range(8)] for number in range(3)]
FUNCTIONS = [[(node + label) % 2 for label in range(112)] for node in range(4)]


def features(width: int) -> list[list[float]]:
    return [[node + column / 128 for column in range(width)] for node in range(4)]


def place(record: DatasetRecord, root: Path) -> Path:
    """Write a graph of four nodes with the edges 0-1, 0-2 and 2-1; node 3 has none."""
    folder = root / record.raw.folder
    split = record.raw.files[-1].split("/")[1]
    own: dict[str, dict[str, Rows]] = {
        "ogbn-arxiv": {"raw/node-feat": features(128), "raw/node-label": [39, 0, 5, 5], "raw/node_year": [2000] * 4},
        "ogbn-products": {"raw/node-feat": features(100), "raw/node-label": [46, 0, 5, 5]},
        "ogbn-proteins": {"raw/edge-feat": WEIGHTS, "raw/node-label": FUNCTIONS, "raw/node_species": [3702] * 4},
    }
    tables = {
        "raw/edge": [(0, 1), (0, 2), (2, 1)],
        "raw/num-node-list": [4],
        "raw/num-edge-list": [3],
        f"split/{split}/train": [3, 0],
        f"split/{split}/valid": [1],
        f"split/{split}/test": [2],
    }
    write_tables(folder, {**tables, **own[record.name]})
    return folder


@pytest.mark.parametrize("record", NODES, ids=lambda record: record.name)
def test_masks_are_those_of_the_official_split_and_the_facts_those_of_the_record(
    record: DatasetRecord, tmp_path: Path
) -> None:
    place(record, tmp_path)
    dataset = opened(record, tmp_path)
    graph = dataset.graphs[0]
    masks = [graph[f"{part}_mask"].nonzero().flatten().tolist() for part in ("train", "val", "test")]
    assert masks == [[0, 3], [1], [2]]
    info = DatasetInfo.of(dataset, record)
    assert (info.dim_in, info.dim_edge, info.dim_out) == (
        record.features.node,
        record.features.edge,
        record.features.classes,
    )
    assert info.directed == record.statistics.directed


@pytest.mark.parametrize("record", [ARXIV, PRODUCTS], ids=lambda record: record.name)
def test_features_and_classes_are_those_of_the_files(record: DatasetRecord, tmp_path: Path) -> None:
    place(record, tmp_path)
    graph = opened(record, tmp_path).graphs[0]
    torch.testing.assert_close(graph.x, torch.tensor(features(record.features.node)))
    assert graph.y.tolist() == [record.features.classes - 1, 0, 5, 5]
    assert graph.y.dtype == torch.int64


def test_citations_keep_their_direction_and_purchases_get_both(tmp_path: Path) -> None:
    place(ARXIV, tmp_path)
    place(PRODUCTS, tmp_path)
    assert opened(ARXIV, tmp_path).graphs[0].edge_index.tolist() == [[0, 0, 2], [1, 2, 1]]
    assert opened(PRODUCTS, tmp_path).graphs[0].edge_index.tolist() == [[0, 1, 0, 2, 2, 1], [1, 0, 2, 0, 1, 2]]


def test_a_protein_has_the_mean_of_its_edges_as_features(tmp_path: Path) -> None:
    place(PROTEINS, tmp_path)
    graph = opened(PROTEINS, tmp_path).graphs[0]
    first, second, third = torch.tensor(WEIGHTS)
    expected = torch.stack([(first + second) / 2, (first + third) / 2, (second + third) / 2, torch.zeros(8)])
    torch.testing.assert_close(graph.x, expected)
    torch.testing.assert_close(graph.edge_attr, torch.stack([first, first, second, second, third, third]))
    torch.testing.assert_close(graph.y, torch.tensor(FUNCTIONS, dtype=torch.float32))


@pytest.mark.parametrize("record", NODES, ids=lambda record: record.name)
def test_the_archive_as_downloaded_will_do(record: DatasetRecord, tmp_path: Path) -> None:
    pack(place(record, tmp_path), record.raw.archives[0].removesuffix(".zip"))
    assert opened(record, tmp_path).graphs[0].num_nodes == 4


def test_every_record_is_found_by_its_public_name() -> None:
    assert [find("OGB", record.name) for record in NODES] == list(NODES)
