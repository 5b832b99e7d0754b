"""GraphGym's own network against torch_geometric's class."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.models.gnn import GNN

from graphgps_kmip.gym.graphgym_registries import choose_package
from graphgps_kmip.gym.network_building import build_network
from tests.gym.networks import DATA, configure, graphs


@pytest.fixture(autouse=True)
def _entered() -> Iterator[None]:
    yield
    cfg.defrost()


@pytest.mark.parametrize("stage", ["stack", "skipsum", "skipconcat"])
@pytest.mark.parametrize("head", ["graph", "inductive_node"])
def test_the_stock_network_with_all_its_parts_equals_torch_geometrics(stage: str, head: str) -> None:
    """With rows of length 1 in input layers, layers and hidden layers of the head, which are not in the records."""
    configure(
        DATA
        | {
            "model.type": "gnn",
            "dataset.edge_encoder": False,
            "gnn.layers_pre_mp": 2,
            "gnn.l2norm": True,
            "gnn.layers_post_mp": 3,
            "gnn.stage_type": stage,
            "gnn.head": "graph",
            "gnn.act": "elu",
            "gnn.dropout": 0.4,  # not in hidden layers of heads
            "dataset.node_encoder_bn": True,
        }
    )
    choose_package("another")
    theirs = GNN(5, 3).double()
    cfg.gnn.head = head
    ours = build_network("gnn", 5, 3).double()
    values = list(theirs.state_dict().values())
    assert [value.shape for value in values] == [value.shape for value in ours.state_dict().values()]
    ours.load_state_dict(dict(zip(ours.state_dict(), values, strict=True)))
    batch = graphs()
    batch.x = batch.x.double()
    ours.eval(), theirs.eval()
    if head == "inductive_node":
        found = ours(batch.clone())[0]
        hidden = theirs.mp(theirs.pre_mp(theirs.encoder(batch.clone())))
        torch.testing.assert_close(found, theirs.post_mp.layer_post_mp(hidden.x))
    else:
        torch.testing.assert_close(ours(batch.clone())[0], theirs(batch.clone())[0])
    theirs.post_mp.train(), ours.head.train()
    torch.testing.assert_close(ours.head(batch_of(batch))[0], theirs_head(theirs, batch_of(batch), head))


def test_the_stock_network_leaves_its_batch_as_it_is() -> None:
    configure(DATA | {"model.type": "gnn", "dataset.edge_encoder": False, "gnn.stage_type": "skipconcat"})
    batch, network = graphs(), build_network("gnn", 5, 3).eval()
    before = batch.clone()
    assert torch.equal(network(batch)[0], network(batch)[0])
    assert batch.to_dict().keys() == before.to_dict().keys()
    assert all(torch.equal(batch[key], before[key]) for key in before.keys())  # noqa: SIM118


def batch_of(batch: Batch) -> Batch:
    batch = batch.clone()
    batch.x = torch.linspace(-1, 1, batch.num_nodes * 8, dtype=torch.float64).view(-1, 8)
    return batch


def theirs_head(network: nn.Module, batch: Batch, head: str) -> torch.Tensor:
    return network.post_mp(batch)[0] if head == "graph" else network.post_mp.layer_post_mp(batch.x)


def test_the_stock_network_draws_the_linear_maps_of_its_encoder_as_graphgym_does() -> None:
    configure(DATA | {"model.type": "gnn", "dataset.edge_encoder": False, "gnn.layers_pre_mp": 1})
    torch.manual_seed(5)
    linear = build_network("gnn", 5, 3).encoder.node.encoder
    assert torch.equal(linear.bias, torch.zeros(8))
    bound = (2 * 6 / (5 + 8)) ** 0.5  # Xavier, with the gain of a ReLU
    assert 0.7 * bound < float(linear.weight.detach().abs().max()) <= bound


def test_graphgps_layers_leave_residual_and_dropout_to_the_stock_network() -> None:
    configure(DATA | {"model.type": "gnn", "gnn.layer_type": "gatedgcnconv", "gnn.dropout": 0.3, "gnn.act": "elu"})
    layer = build_network("gnn", 5, 3).layers[0].layer
    conv = layer.layer.conv
    assert (conv.residual, conv.edge_residual, conv.dropout.p, layer.post_layer[1].p) == (False, False, 0.0, 0.3)
    assert isinstance(conv.act, nn.ReLU)
    cfg.gnn.layer_type, cfg.gt.gine.inner = "gineconv", "norm_linear"
    assert isinstance(build_network("gnn", 5, 3).layers[0].layer.layer.conv.inner[0], nn.Linear)
