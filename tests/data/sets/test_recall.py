"""Associative recall on rings: what a graph holds, which nodes are scored, and that it never changes."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.utils import is_undirected

from graphgps_kmip.data import DatasetInfo, find, mismatches, open_dataset, sampled
from graphgps_kmip.data.sets.recall import CODE_LENGTHS, VALUES
from graphgps_kmip.model.prediction_heads import NodeHead


@pytest.mark.parametrize("nodes", [32, 512])
def test_a_query_has_the_code_of_one_key_and_the_label_that_this_key_shows(nodes: int) -> None:
    graph = open_dataset(find("LongRange", f"recall-{nodes}"), root="")[0]
    is_key, signs = graph.x[:, 0] == 1, CODE_LENGTHS[nodes]
    code, value = graph.x[:, 1 : 1 + signs], graph.x[:, 1 + signs :]
    assert int(is_key.sum()) == nodes // 2
    assert torch.equal(code.abs(), torch.ones_like(code))
    assert len(code[is_key].unique(dim=0)) == nodes // 2
    assert torch.equal(value.sum(1), is_key.float())
    matches = (code[~is_key][:, None] == code[is_key]).all(-1)
    assert torch.equal(matches.sum(1), torch.ones(nodes // 2, dtype=torch.long))
    assert torch.equal(value[is_key].argmax(1)[matches.int().argmax(1)], graph.y[~is_key])
    assert is_undirected(graph.edge_index)
    assert torch.equal(graph.edge_index[0].bincount(), torch.full((nodes,), 2))
    # in random order: keys and queries are not two arcs of the ring
    assert int((is_key != is_key.roll(1)).sum()) > nodes // 4


def test_the_head_node_scores_the_queries_of_each_split_alone() -> None:
    graphs = open_dataset(find("LongRange", "recall-64"), root="").graphs[:3]
    for split in ("train", "val", "test"):
        batch = Batch.from_data_list(list(graphs))
        batch.split = split
        prediction, label = NodeHead(batch.x.size(1), VALUES, masked=True)(batch)
        assert len(prediction) == len(label) == 3 * 32
        assert torch.equal(label, batch.y[batch.x[:, 0] == 0])


def test_labels_are_balanced_so_that_a_guess_is_right_in_a_quarter_of_the_queries() -> None:
    dataset = open_dataset(find("LongRange", "recall-128"), root="")
    labels = torch.cat([graph.y[graph.test_mask] for graph in dataset.graphs])
    assert (labels.bincount() / len(labels) - 0.25).abs().max() < 0.01


@pytest.mark.parametrize("nodes", [32, 1024])
def test_the_card_says_what_is_loaded_and_every_run_has_the_same_graphs(nodes: int) -> None:
    record = find("LongRange", f"recall-{nodes}")
    dataset = open_dataset(record, root="a folder that is never made")
    assert mismatches(record, DatasetInfo.of(dataset, record)) == []
    # recorded, on numpy 2: a change of the generator would make published scores those of other graphs
    recorded = {32: [0, 1, 0, 0], 1024: [3, 3, 3, 0]}
    assert dataset.graphs[-1].y[:4].tolist() == recorded[nodes]


def test_codes_are_at_least_twice_as_many_as_the_keys_of_a_graph() -> None:
    assert all(2**signs >= nodes for nodes, signs in CODE_LENGTHS.items())


def test_a_sample_has_the_schema_and_the_masks_of_the_data_set() -> None:
    record = sampled(find("LongRange", "recall-256"))
    sample = open_dataset(record, root="")
    assert len(sample) == 30
    assert sample[0].x.shape == (256, 15)
    assert int(sample[0].val_mask.sum()) == 128
