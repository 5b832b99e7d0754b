"""The syntax trees of ogbg-code2: raw files in their published form, through ogb's class."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch_geometric.data import Batch

from graphgps_kmip.data import find, sampled
from graphgps_kmip.data.ogb_tables import END, UNKNOWN, vocabulary
from graphgps_kmip.encoding.feature_encoders import SyntaxNodeEncoder
from tests.data.sets.raw_files import opened
from tests.data.sets.raw_ogb import write_tables

CODE = find("OGB", "ogbg-code2")
# A tree of five nodes, given out of the order of its tokens; a tree of two; a tree of one.
TREE = {
    "raw/edge": [(0, 1), (0, 2), (2, 3), (2, 4), (0, 1)],
    "raw/num-node-list": [5, 2, 1],
    "raw/num-edge-list": [4, 1, 0],
    "raw/node-feat": [(97, 10029), (1, 2), (3, 4), (5, 6), (7, 8), (9, 10), (11, 12), (13, 14)],
    "raw/node_is_attributed": [0, 1, 0, 1, 1, 0, 0, 1],
    "raw/node_dfs_order": [0, 1, 2, 4, 3, 0, 1, 0],
    "raw/node_depth": [0, 1, 1, 2, 2, 0, 1, 0],
    "raw/graph-label": ["get item", "get rare get name of the thing", "set item item"],
    "split/project/train": [0, 2],
    "split/project/valid": [1],
    "split/project/test": [1],
}


def test_syntax_trees_get_both_directions_and_edges_from_token_to_token(tmp_path: Path) -> None:
    write_tables(tmp_path / CODE.raw.folder, TREE)
    tree, pair, single = opened(CODE, tmp_path).graphs
    edges = list(zip(*tree.edge_index.tolist(), *tree.edge_attr.T.tolist(), strict=True))
    downwards = [(0, 1), (0, 2), (2, 3), (2, 4)]
    tokens = [(1, 4), (4, 3)]  # in the order in which the code has them
    assert sorted(edges) == sorted(
        [
            *((one, two, 0, 0) for one, two in downwards),
            *((two, one, 0, 1) for one, two in downwards),
            *((one, two, 1, 0) for one, two in tokens),
            *((two, one, 1, 1) for one, two in tokens),
        ]
    )
    assert tree.edge_attr.dtype == torch.int64
    assert tree.x.tolist() == [[97, 10029], [1, 2], [3, 4], [5, 6], [7, 8]]
    assert tree.node_depth.flatten().tolist() == [0, 1, 1, 2, 2]
    assert pair.edge_index.tolist() == [[0, 1], [1, 0]]
    assert single.edge_index.shape == (2, 0)
    assert single.edge_attr.shape == (0, 2)


def test_names_become_numbers_of_the_vocabulary_of_the_training_graphs(tmp_path: Path) -> None:
    write_tables(tmp_path / CODE.raw.folder, TREE)
    dataset = opened(CODE, tmp_path)
    kept = tmp_path / CODE.raw.folder / "processed" / "vocabulary.json"
    assert json.loads(kept.read_text()) == ["item", "get", "set"]  # by frequency, then by first appearance
    assert Batch.from_data_list(list(dataset.graphs)).y.tolist() == [
        [1, 0, END, END, END],
        [1, UNKNOWN, 1, UNKNOWN, UNKNOWN],  # the first five only
        [2, 0, 0, END, END],
    ]
    assert (UNKNOWN, END, CODE.features.classes) == (5000, 5001, 5002)


def test_the_kept_vocabulary_is_used_again(tmp_path: Path) -> None:
    write_tables(tmp_path / CODE.raw.folder, TREE)
    opened(CODE, tmp_path)
    kept = tmp_path / CODE.raw.folder / "processed" / "vocabulary.json"
    kept.write_text(json.dumps(["get", "item"]))
    assert opened(CODE, tmp_path).graphs[0].y.tolist() == [[0, 1, END, END, END]]


def test_the_vocabulary_ends_after_five_thousand_words() -> None:
    names = [[f"word{number}"] * (2 if number == 6000 else 1) for number in range(6001)]
    words = vocabulary(names)
    assert (len(words), words[:2], words[-1]) == (5000, ["word6000", "word0"], "word4998")


def test_its_sample_has_all_that_its_encoder_asks_for() -> None:
    batch = SyntaxNodeEncoder(8)(sampled(CODE).load("").graphs[0])
    assert batch.x.shape[1] == 8
