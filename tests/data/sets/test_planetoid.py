"""Planetoid: pickled matrices, with CiteSeer's isolated test nodes; Cora and CiteSeer also from their real files."""

from __future__ import annotations

import io
import os
import pickle
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from graphgps_kmip.data import DatasetInfo, DatasetRecord, find, open_dataset
from graphgps_kmip.data.dataset_info import mismatches
from graphgps_kmip.data.sets.citation_networks import PLANETOID
from tests.data.sets.raw_files import Code
from tests.data.sets.raw_nodes import check_refused, edges_of, opened, raw_folder

TRAIN, KNOWN = 3, 505  # training nodes; nodes outside the test part, of which 500 validate
CASES = pytest.mark.parametrize("record", PLANETOID, ids=lambda record: record.title)


class Python2Pickler(pickle._Pickler):
    """Write bytes as Python 2, by which the published files were made, wrote its strings."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_bytes(self, content: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)
        self.memoize(content)

    dispatch[bytes] = save_bytes


def pickled(content: Any) -> bytes:
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(content)
    return buffer.getvalue()


def place(record: DatasetRecord, root: Path) -> list[int]:
    """Write the raw files; node n has the features (n, 0, 1) and the class n % 2. Return the test nodes, shuffled."""
    isolated = record.name == "CiteSeer"
    tests = [508, 505, 507] if isolated else [507, 505, 506]  # CiteSeer leaves numbers out
    ends = sorted(tests)
    nodes = {"x": range(TRAIN), "allx": range(KNOWN), "tx": tests}
    links = {0: [1, 1, 0], 1: [0, 2], 2: [], 3: [ends[0]], ends[0]: [3], ends[-1]: []}
    content: dict[str, Any] = {"graph": defaultdict(list, links)}
    for name, numbers in nodes.items():
        rows = np.array([[number, 0, 1] for number in numbers], dtype=np.float32)
        content[name] = scipy.sparse.csr_matrix(rows)
        content[name.replace("x", "y")] = np.eye(2, dtype=np.int32)[[number % 2 for number in numbers]]
    raw = raw_folder(record, root)
    low = record.name.lower()
    for name, value in content.items():
        (raw / f"ind.{low}.{name}").write_bytes(pickled(value))
    (raw / f"ind.{low}.test.index").write_text("".join(f"{number}\n" for number in tests))
    return tests


@CASES
def test_pickled_parts_are_put_together_by_the_numbers_of_the_test_nodes(record: DatasetRecord, tmp_path: Path) -> None:
    tests = place(record, tmp_path)
    graph = opened(record, tmp_path)
    nodes = max(tests) + 1
    isolated = set(range(KNOWN, nodes)) - set(tests)
    assert bool(isolated) == (record.name == "CiteSeer")
    expected = [[0, 0, 0] if number in isolated else [number, 0, 1] for number in range(nodes)]
    assert graph.x.tolist() == expected
    assert graph.y.tolist() == [0 if number in isolated else number % 2 for number in range(nodes)]
    first = min(tests)  # edges as in the file, without the one to itself and the second of two
    assert edges_of(graph) == [(0, 1), (1, 0), (1, 2), (3, first), (first, 3)]
    assert graph.train_mask.nonzero().flatten().tolist() == [0, 1, 2]
    assert graph.val_mask.nonzero().flatten().tolist() == list(range(3, 503))
    assert graph.test_mask.nonzero().flatten().tolist() == sorted(tests)


@pytest.mark.parametrize("part", ["allx", "graph"])
def test_a_part_that_holds_code_is_refused(part: str, tmp_path: Path) -> None:
    record = find("PyG-Planetoid", "Cora")
    place(record, tmp_path)
    file = f"raw/ind.cora.{part}"
    (tmp_path / record.raw.folder / file).write_bytes(pickled(Code(tmp_path / "it-ran")))

    def careless(path: Path) -> None:
        pickle.loads(path.read_bytes())

    check_refused(record, tmp_path, file, "it asks for posix.mkdir", careless)


def test_a_part_that_ends_too_early_is_named_and_set_aside(tmp_path: Path) -> None:
    record = find("PyG-Planetoid", "CiteSeer")
    place(record, tmp_path)
    path = tmp_path / record.raw.folder / "raw" / "ind.citeseer.ally"
    path.write_bytes(path.read_bytes()[:50])
    check_refused(record, tmp_path, "raw/ind.citeseer.ally", "")


@pytest.mark.dataset
@pytest.mark.parametrize("name", ["Cora", "CiteSeer"])
def test_the_real_files_hold_what_was_published(name: str, tmp_path: Path) -> None:
    record = find("PyG-Planetoid", name)
    raw = raw_folder(record, tmp_path)
    for file in Path(os.environ["GRAPHGPS_KMIP_DATA"], record.raw.folder, "raw").iterdir():
        (raw / file.name).symlink_to(file)
    dataset = open_dataset(record, tmp_path)
    assert mismatches(record, DatasetInfo.of(dataset, record)) == []
    graph = dataset.graphs[0]
    assert torch.bincount(graph.y[graph.train_mask]).tolist() == [20] * record.features.classes
    degree = torch.bincount(graph.edge_index[1], minlength=graph.num_nodes)
    assert int((degree == 0).sum()) == {"Cora": 0, "CiteSeer": 48}[name]
