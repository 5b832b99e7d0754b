"""Geom-GCN's graphs: text files of nodes and edges, ten npz files of masks, under all their names in YAML."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphgps_kmip.data import DatasetRecord, find
from graphgps_kmip.data.sets.heterophilous import PLATONOV
from graphgps_kmip.data.sets.heterophilous import RECORDS as HETEROPHILOUS
from tests.data.sets.raw_files import Code
from tests.data.sets.raw_nodes import NODES, check_masks, check_refused, edges_of, opened, raw_folder, split_masks

RECORDS = HETEROPHILOUS[len(PLATONOV) :]
WORDS = [[0, 2], [1], *([[3]] * (NODES - 2))]  # which words a node has
EDGES = [(0, 1), (9, 2), (0, 1), (4, 4)]  # one twice, one to itself
CASES = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.key)


def place(record: DatasetRecord, root: Path) -> Path:
    """Write the raw files, and return the folder; actors list their words, others say 0 or 1 of each."""
    raw = raw_folder(record, root)
    nodes = []
    for number, words in enumerate(WORDS):
        values = words if record.title == "Actor" else [int(word in words) for word in range(4)]
        nodes.append(f"{number}\t{','.join(map(str, values))}\t{number % 5}")
    (raw / "out1_node_feature_label.txt").write_text("\n".join(["node_id\tfeature\tlabel", *nodes, ""]))
    edges = [f"{one}\t{other}" for one, other in EDGES]
    (raw / "out1_graph_edges.txt").write_text("\n".join(["node_id\tnode_id", *edges, ""]))
    for number, file in enumerate(record.raw.files[2:]):
        np.savez(raw.parent / file, **{name: mask.astype(np.uint8) for name, mask in split_masks(number).items()})
    return raw


@CASES
def test_words_links_and_every_split_are_read(record: DatasetRecord, tmp_path: Path) -> None:
    place(record, tmp_path)
    for number in (0, 3):
        graph = opened(record, tmp_path, number)
        check_masks(graph, split_masks(number))
    assert graph.x.tolist() == [[float(word in words) for word in range(4)] for words in WORDS]
    assert graph.y.tolist() == [number % 5 for number in range(NODES)]
    assert edges_of(graph) == [(0, 1), (4, 4), (9, 2)]


@pytest.mark.parametrize("name", ["actor", "chameleon", "squirrel"])
def test_the_names_of_sp_exphormer_mean_the_same_files(name: str) -> None:
    own = find("PyG-Actor") if name == "actor" else find("PyG-WikipediaNetwork", name)
    for other in (find("PyG-actor", name), find(f"PyG-{name}", name)):
        assert (other.raw, other.statistics, other.title) == (own.raw, own.statistics, own.title)


def test_the_summary_of_cornell_tells_the_known_fault_of_its_files() -> None:
    fault = "its node features are those of Texas (known fault), edges, labels and splits are its own"
    assert fault in find("PyG-WebKB", "cornell").summary
    assert "Texas" not in find("PyG-WebKB", "texas").summary + find("PyG-WebKB", "wisconsin").summary


def careless(path: Path) -> None:
    np.load(path, allow_pickle=True)["train_mask"]


@pytest.mark.parametrize("key", [("PyG-Actor", ""), ("PyG-WebKB", "texas"), ("PyG-WikipediaNetwork", "squirrel")])
def test_masks_that_hold_code_are_refused(key: tuple[str, str], tmp_path: Path) -> None:
    record = find(*key)
    place(record, tmp_path)
    file = record.raw.files[5]
    np.savez(tmp_path / record.raw.folder / file, train_mask=np.array([Code(tmp_path / "it-ran")], dtype=object))
    check_refused(record, tmp_path, file, "it asks for posix.mkdir", careless)


def test_a_file_of_nodes_that_ends_too_early_is_named_and_set_aside(tmp_path: Path) -> None:
    record = find("PyG-WebKB", "texas")
    (place(record, tmp_path) / "out1_node_feature_label.txt").write_text("node_id\tfeature\tlabel\n0\t1,0\n")
    check_refused(record, tmp_path, "raw/out1_node_feature_label.txt", "line 2 has not 3 columns")
