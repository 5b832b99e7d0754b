"""Splits of pairs of nodes: no validation or test edge carries messages in training, in whatever form it was given."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from graphgps_kmip.data import DataError, DatasetInfo, GraphDataset, open_dataset
from graphgps_kmip.data.graph_folder import folder_record
from graphgps_kmip.data.splits import divide_links
from tests.data.graph_files import arrays, write

SHARES = (0.6, 0.2, 0.2)


def pairs(edge_index: torch.Tensor, is_directed: bool) -> set[tuple[int, int]]:
    """Return the pairs as a set, of undirected graphs without their direction."""
    return {(a, b) if is_directed else (min(a, b), max(a, b)) for a, b in edge_index.T.tolist()}


@given(seed=st.integers(0, 1000), is_directed=st.booleans(), supervision=st.sampled_from([0.0, 0.3]))
def test_no_predicted_edge_carries_messages_before_its_split(seed: int, is_directed: bool, supervision: float) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(10, 20))
    edges = torch.from_numpy(rng.integers(0, size, (2, 60)))  # with repeated edges and self loops
    edges = edges if is_directed else torch.cat([edges, edges.flip(0)], dim=1)
    values = edges[0] * size + edges[1]
    graph = Data(x=torch.ones(size, 1), edge_index=edges, edge_attr=values[:, None], num_nodes=size)
    state, torch_state = random.getstate(), torch.get_rng_state()
    dataset = divide_links(GraphDataset([graph]), SHARES, seed, supervision=supervision)
    assert random.getstate() == state
    assert torch.equal(torch.get_rng_state(), torch_state)
    train, val, test = (dataset.graphs[int(part)] for part in dataset.splits)
    everything = {(a, b) for a, b in pairs(edges, is_directed) if a != b}
    positives = []
    for part in (train, val, test):
        chosen, others = (part.edge_label_index[:, part.edge_label == label] for label in (1, 0))
        positives.append(pairs(chosen, is_directed))
        assert positives[-1]
        assert not pairs(others, is_directed) & everything
        assert torch.equal(part.edge_attr[:, 0], part.edge_index[0] * size + part.edge_index[1]) or not is_directed
    messages = [pairs(part.edge_index, is_directed) for part in (train, val, test)]
    assert not messages[0] & (positives[1] | positives[2])
    assert not messages[1] & (positives[1] | positives[2])
    assert not messages[2] & positives[2]
    assert messages[2] == everything - positives[2]
    assert messages[1] == everything - positives[1] - positives[2]
    assert messages[0] == (messages[1] - positives[0] if supervision else messages[1])
    assert not positives[0] & positives[1] | positives[0] & positives[2] | positives[1] & positives[2]


def test_links_of_a_folder_are_the_same_in_every_run_unless_the_split_is_random(tmp_path: Path) -> None:
    ring = np.stack([np.arange(30), np.roll(np.arange(30), 1)])
    ring = np.concatenate([ring, ring[::-1]], axis=1)
    files = {f"{number}.npz": arrays(x=np.ones((30, 1)), edge_index=ring, y=None) for number in range(4)}
    write(tmp_path / "mine", files)
    record = folder_record("mine", tmp_path, links={"negatives": 2.0})
    first, again = open_dataset(record, tmp_path, seed=1), open_dataset(record, tmp_path, seed=2)
    drawn = [open_dataset(record, tmp_path, "random", SHARES, seed=seed) for seed in (1, 2)]
    same = [torch.equal(a.graphs[0].edge_index, b.graphs[0].edge_index) for a, b in ((first, again), drawn)]
    assert same == [True, False]
    assert [len(part) for part in first.splits] == [4, 4, 4]
    assert first.files[0] == first.files[4] == first.files[8]
    train, labels = first.graphs[0].edge_label_index[:, first.graphs[0].edge_label == 1], first.graphs[8].edge_label
    assert (train[0] < train[1]).unique().tolist() == [False, True], "the order of a pair would tell its label"
    assert int((labels == 0).sum()) == 2 * int((labels == 1).sum())
    info = DatasetInfo.of(first, record)
    assert (info.level, info.dim_out) == ("link", 1)


def test_labelled_edges_of_one_graph_are_divided_and_all_carry_messages(tmp_path: Path) -> None:
    edges = np.stack([np.arange(20), np.roll(np.arange(20), 1)])
    values = arrays(x=np.ones((20, 1)), edge_index=edges, y=None, edge_label=np.arange(20) % 3)
    write(tmp_path / "mine", {"0.npz": values})
    record = folder_record("mine", tmp_path)
    dataset = open_dataset(record, tmp_path)
    assert DatasetInfo.of(dataset, record).dim_out == 3
    assert [graph.edge_label.numel() for graph in dataset.graphs] == [12, 4, 4]
    assert all(torch.equal(graph.edge_label, graph.edge_label_index[0] % 3) for graph in dataset.graphs)
    assert len(torch.cat([graph.edge_label_index[0] for graph in dataset.graphs]).unique()) == 20
    assert all(graph.num_edges == 20 for graph in dataset.graphs)


def test_what_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "few", {"0.npz": arrays(edge_index=[[0], [0]], y=None)})
    with pytest.raises(DataError, match=r"graph 0 \(.*few/0.npz\): 0 edges are too few"):
        open_dataset(folder_record("few", tmp_path, links={}), tmp_path)
    record = folder_record("few", tmp_path, links={})
    with pytest.raises(ValueError, match="few divides pairs of nodes: set standard or random"):
        open_dataset(record, tmp_path, "cv-kfold-3")
    write(tmp_path / "parts", {f"{part}/0.npz": arrays(y=None) for part in ("train", "val", "test")})
    with pytest.raises(DataError, match="dataset.task link_pred divides the edges of each graph"):
        open_dataset(folder_record("parts", tmp_path, links={}), tmp_path)
