"""CSV tables of a user's own graphs: what is read from them, splits, and mistakes, which name file, line and value."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from graphgps_kmip.data import DataError, GraphDataset
from tests.data.graph_files import arrays, opened, write

TABLES = {
    "num-node-list": "3\n1\n2\n3\n4\n",
    "num-edge-list": "2\n0\n1\n2\n0\n",
    "edge": "0,1\n1,2\n1,0\n2,2\n0,2\n",
    "node-feat": "".join(f"{number / 2},1\n" for number in range(13)),
    "edge-feat": "1\n2\n3\n4\n5\n",
    "graph-label": "0\n1\n2\n1\n0\n",
}
NODE = np.split(np.arange(13) / 2, [3, 4, 6, 9])


def tables(folder: Path, **changes: str | None) -> Path:
    """Write the tables of five graphs; None leaves one out."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (TABLES | {name.replace("_", "-"): text for name, text in changes.items()}).items():
        if text is not None:
            (folder / f"{name}.csv").write_text(text)
    return folder


@pytest.mark.parametrize("layout", ["", "raw"])
def test_tables_are_the_graphs_that_npz_files_of_the_same_content_are(layout: str, tmp_path: Path) -> None:
    folder = tables(tmp_path / "mine" / layout)
    edges = [[[0, 1], [1, 2]], np.empty((2, 0)), [[1], [0]], [[2, 0], [2, 2]], np.empty((2, 0))]
    features = np.split(np.arange(1, 6)[:, None], [2, 2, 3, 5])
    for number in range(5):
        x = np.stack([NODE[number], np.ones(len(NODE[number]))], axis=1)
        content = arrays(x=x, edge_index=edges[number], edge_attr=features[number], y=[0, 1, 2, 1, 0][number])
        write(tmp_path / "same", {f"{number}.npz": content})
    (folder / "edge.csv").rename(folder / "edge")
    (folder / "edge.csv.gz").write_bytes(gzip.compress((folder / "edge").read_bytes()))
    assert_equal(opened(tmp_path / "mine"), opened(tmp_path / "same"))


def assert_equal(first: GraphDataset, second: GraphDataset) -> None:
    for one, other in zip(first.graphs, second.graphs, strict=True):
        for key, value in other.to_dict().items():
            torch.testing.assert_close(one[key], value, check_dtype=key != "edge_attr")


@pytest.mark.parametrize("place", ["split", "split/scaffold"])
def test_split_files_divide_graphs_or_the_nodes_of_one(place: str, tmp_path: Path) -> None:
    whole = tables(tmp_path / "mine")
    single = tables(
        tmp_path / "single", num_node_list="5\n", num_edge_list="5\n", edge_feat=None, graph_label=None,
        node_feat="1\n" * 5, node_label="0\n1\n2\n0\n1\n",
    )  # fmt: skip
    for folder in (whole, single):
        (folder / place).mkdir(parents=True)
        for name, rows in {"train": "4\n0\n2\n", "valid": "1\n", "test": "3\n"}.items():
            (folder / place / f"{name}.csv").write_text(rows)
    assert [part.tolist() for part in opened(whole).splits] == [[4, 0, 2], [1], [3]]
    graph = opened(single).graphs[0]
    masks = [graph[f"{split}_mask"].nonzero().flatten().tolist() for split in ("train", "val", "test")]
    assert masks == [[0, 2, 4], [1], [3]]


def test_numbers_to_predict_and_unknown_labels_keep_their_values(tmp_path: Path) -> None:
    values = "0.25\n1\n2\n-1\n0\n"
    numbers = opened(tables(tmp_path / "numbers", graph_label=values), "regression")
    assert [float(graph.y) for graph in numbers.graphs] == [0.25, 1, 2, -1, 0]
    labels = opened(tables(tmp_path / "labels", graph_label="0,\n1,1\n,0\n1,0\n,\n"), "classification_multilabel")
    expected = [[0, torch.nan], [1, 1], [torch.nan, 0], [1, 0], [torch.nan, torch.nan]]
    torch.testing.assert_close(torch.cat([graph.y for graph in labels.graphs]), torch.tensor(expected), equal_nan=True)


WRONG = {
    "a node that is not there": ({"edge": "0,1\n1,2\n1,0\n2,7\n0,2\n"}, r"edge.csv, line 4: node 7 .* 3 has .*0..2"),
    "rows are missing": ({"node_feat": "1,1\n" * 12}, r"node-feat.csv: 12 rows for 13 nodes \(num-node-list.csv\)"),
    "a label is missing": ({"graph_label": "0\n1\n2\n1\n"}, r"graph-label.csv: 4 rows for 5 graphs"),
    "an empty line": ({"graph_label": "0\n\n2\n1\n0\n"}, r"graph-label.csv, line 2: .* a number, got nothing"),
    "text": ({"edge_feat": "1\n2\nC\n4\n5\n"}, r"edge-feat.csv, line 3: column 0 must hold a number, got 'C'"),
    "a header": ({"edge": "source,target\n" + TABLES["edge"]}, r"edge.csv, line 1: .*'source': no table has a header"),
    "a fraction": ({"num_edge_list": "2\n0\n1.5\n2\n0\n"}, r"num-edge-list.csv, line 3: .* whole number .* 1.5"),
    "a table is missing": ({"edge": None}, r"edge.csv is missing"),
    "no features": ({"node_feat": None}, r"node-feat.csv is missing: without features, write a column of ones"),
    "a near miss": ({"graph_label": None, "graph_labels": "1\n" * 5}, r"graph-labels.csv: .* Did you mean graph-label"),
    "two labels": ({"node_label": "1\n" * 13}, r"graph-label.csv and node-label.csv are both there"),
    "three columns": ({"edge": "0,1,1\n1,2,1\n1,0,1\n2,2,1\n0,2,1\n"}, r"edge.csv: an edge has 2 columns, .* got 3"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_a_mistake_in_a_table_names_file_line_and_value(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"mine/{message}|mine: {message}") as raised:
        opened(tables(tmp_path / "mine", **changes))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("files", "message"),
    [({"train": "0\n", "test": "1\n"}, "split: valid.csv is missing"),
     ({"train": "0\n5\n", "valid": "1\n", "test": "2\n"}, "split/train.csv, line 2: 5, and there are 0..4")],
)  # fmt: skip
def test_a_wrong_split_file_is_named(files: dict[str, str], message: str, tmp_path: Path) -> None:
    folder = tables(tmp_path / "mine")
    (folder / "split").mkdir()
    for name, rows in files.items():
        (folder / "split" / f"{name}.csv").write_text(rows)
    with pytest.raises(DataError, match=message):
        opened(folder)
