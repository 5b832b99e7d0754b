"""An encoder of nodes at work on edges."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding.kernel_encoder import KernelEncoder, OnEdges

EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])


def module(norm: bool = False) -> OnEdges:
    return OnEdges(KernelEncoder("ERE", 2, 7, model="Linear", dim_pe=3), "pestat_ERE", 4 if norm else None)


def batch(num_edges: int = 3) -> Batch:
    data = Data(x=torch.randn(3, 5), edge_index=EDGES[:, :num_edges], edge_attr=torch.randn(num_edges, 4))
    data.edge_pestat_ERE = torch.rand(num_edges, 2)
    return Batch.from_data_list([data, data])


@pytest.mark.parametrize("norm", [False, True])
def test_the_encoding_of_an_edge_stands_beside_its_features(norm: bool) -> None:
    encoder, given = module(norm), batch()
    before = given.clone()
    out = encoder(given)
    features = torch.nn.functional.batch_norm(before.edge_attr, None, None, training=True) if norm else before.edge_attr
    expected = torch.cat([features, encoder.encoder.pe_encoder(before.edge_pestat_ERE)], dim=1)
    torch.testing.assert_close(out.edge_attr, expected)
    assert all(torch.equal(out[key], value) for key, value in before if key != "edge_attr")


@pytest.mark.parametrize("num_edges", [0, 1])
def test_few_edges_and_none_pass_the_norm(num_edges: int) -> None:
    data = batch(num_edges)[0]
    assert module(norm=True)(Batch.from_data_list([data])).edge_attr.shape == (num_edges, 7)


def test_the_numbers_of_edges_are_told_from_those_of_nodes() -> None:
    data = batch()[0]
    assert data.num_nodes == data.num_edges
    assert data.is_edge_attr("edge_pestat_ERE")
    assert not data.is_node_attr("edge_pestat_ERE")


def test_missing_statistics_and_features_are_refused() -> None:
    given = batch()
    del given.edge_pestat_ERE
    with pytest.raises(ValueError, match="set posenc_ERE.enable True"):
        module()(given)
    given.edge_attr = None
    with pytest.raises(ValueError, match="needs edge features"):
        module()(given)
