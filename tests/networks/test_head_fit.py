"""Which heads are refused for which data: one that would learn the labels of test nodes above all."""

from __future__ import annotations

import pytest

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.networks.head_builders import check_head


class Node(dict):
    """Settings with attributes."""

    __getattr__ = dict.__getitem__


def settings(head: str) -> Node:
    data = Node(format="PyG-Planetoid", name="Cora", task_type="classification")
    return Node(gnn=Node(head=head), dataset=data)


@pytest.mark.parametrize("head", ["inductive_node", "graph", "linear_graph"])
def test_of_one_graph_divided_by_masks_a_head_for_all_nodes_or_graphs_is_refused(head: str) -> None:
    with pytest.raises(ConfigError, match=f"gnn.head: {head} does not fit PyG-Planetoid Cora, .* set gnn.head node"):
        check_head(settings(head), "node")


@pytest.mark.parametrize("head", ["graph", "san_graph"])
def test_a_head_for_graphs_is_refused_for_labels_of_nodes_with_what_the_public_codes_do(head: str) -> None:
    line = f"gnn.head: {head} does not fit .* each node; the public codes stop at their first loss, .* inductive_node"
    with pytest.raises(ConfigError, match=line):
        check_head(settings(head), "inductive_node")


@pytest.mark.parametrize(
    ("head", "level"),
    [("node", "node"), ("linear_node", "node"), ("inductive_node", "sampled"), ("inductive_node", "inductive_node")],
)
def test_heads_that_fit_pass(head: str, level: str) -> None:
    check_head(settings(head), level)
