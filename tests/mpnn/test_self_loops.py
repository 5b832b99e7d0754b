"""Self loops: what torch_geometric's convolutions do with ``add_self_loops``."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.nn import GATConv, GCNConv

from graphgps_kmip.mpnn.message_passing import PlainConv, with_own_loops

LOOPS = torch.tensor([[0, 1, 1, 2, 3, 3], [1, 1, 0, 3, 3, 2]])  # two are loops; node 4 has no edge


@pytest.mark.parametrize("edge_index", [LOOPS, LOOPS[:, [0, 2, 3, 5]]], ids=["with loops", "without"])
def test_convolutions_on_edges_with_own_loops_equal_those_that_add_them(edge_index: torch.Tensor) -> None:
    x, edge_attr = torch.randn(5, 4), torch.randn(edge_index.size(1), 3)
    for conv, given in ((GATConv(4, 2, 2, edge_dim=3), edge_attr), (GCNConv(4, 4), None)):
        expected = conv(x, edge_index, given)
        if given is None:
            torch.testing.assert_close(PlainConv(conv)(x, edge_index, None)[0], expected)
        conv.add_self_loops = False
        edges, features = with_own_loops(edge_index, given, len(x))
        torch.testing.assert_close(conv(x, edges, features), expected)
        assert edges.size(1) == 4 + 5
