"""Which heads are refused for which data: one that would learn the labels of test nodes above all."""

from __future__ import annotations

import pytest

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.networks.head_builders import check_head


class Node(dict):
    __getattr__ = dict.__getitem__


def settings(head: str) -> Node:
    data = Node(format="PyG-Planetoid", name="Cora", task_type="classification")
    return Node(gnn=Node(head=head), dataset=data)


@pytest.mark.parametrize(
    ("head", "level", "line"),
    [
        (head, "node", " PyG-Planetoid Cora, .* set gnn.head node")
        for head in ("inductive_node", "graph", "linear_graph")
    ]
    + [(head, "inductive_node", ".*; the public codes stop at .* inductive_node") for head in ("graph", "san_graph")],
)
def test_a_head_that_the_labels_do_not_fit_is_refused(head: str, level: str, line: str) -> None:
    with pytest.raises(ConfigError, match=f"gnn.head: {head} does not fit{line}"):
        check_head(settings(head), level)


@pytest.mark.parametrize(
    ("head", "level"),
    [("node", "node"), ("linear_node", "node"), ("inductive_node", "sampled"), ("inductive_node", "inductive_node")],
)
def test_heads_that_fit_pass(head: str, level: str) -> None:
    check_head(settings(head), level)
