"""The network of the low-width method: whole graphs, sparse batches, draws, its options and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.compat.public_faults import MixedHeadsAttention, repeat_faults
from graphgps_kmip.errors import ConfigError, InputError
from graphgps_kmip.networks.create_model import create_model

CLASSES = 3
ROUNDING = {"rtol": 1e-11, "atol": 1e-11}


def build(layer_type: str, num_layers: int = 2, num_heads: int = 2, **settings: Any) -> nn.Module:
    torch.manual_seed(2)
    settings = {"gnn.layers_pre_mp": 1} | settings
    options = {"dim": 8, "num_heads": num_heads, "head": "inductive_node"}
    model = create_model(
        layer_type, 5, CLASSES, network="Spexphormer", num_layers=num_layers, settings=settings, **options
    )
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm1d):
            nn.init.normal_(norm.running_mean)
    return model.double().eval()


def graphs() -> Batch:
    graphs = []
    for nodes in (9, 6):
        edge_index, expander = (torch.randint(0, nodes, (2, count)) for count in (20, 12))
        x, y = torch.randn(nodes, 5, dtype=torch.double), torch.randint(0, CLASSES, (nodes,))
        graphs.append(Data(x=x, y=y, edge_index=edge_index, expander_edge_index=expander))
    return Batch.from_data_list(graphs)


def sparse(sizes: list[int], num_edges: int = 15) -> Data:
    edges = []
    for sources, targets in zip(sizes, sizes[1:], strict=False):
        counts = (sources, targets, 3)
        source, target, kind = (torch.randint(0, count, (num_edges,)) for count in counts)
        edges.append(torch.stack([source, target.sort().values, kind]))
    x, y = torch.randn(sizes[0], 5, dtype=torch.double), torch.randint(0, CLASSES, (sizes[-1],))
    return Data(x=x, y=y, layer_sizes=sizes, layer_edges=edges)


@pytest.mark.parametrize("layer_type", ["ScoreEstimator", "ASE", "Exphormer"])
def test_a_network_on_whole_graphs_predicts_each_graph_as_if_alone(layer_type: str) -> None:
    model, batch = build(layer_type), graphs()
    pred, true = model(batch.clone())
    assert torch.equal(true, batch.y)
    alone = [model(Batch.from_data_list([graph]))[0] for graph in batch.to_data_list()]
    torch.testing.assert_close(torch.cat(alone), pred, **ROUNDING)


@pytest.mark.parametrize("layer_type", ["ScoreEstimator", "Exphormer"])
def test_all_kinds_of_edges_and_all_parameters_count(layer_type: str) -> None:
    model, batch = build(layer_type), graphs()
    model(batch.clone())[0].square().sum().backward()
    zero = {name for name, p in model.named_parameters() if not p.grad.abs().max() > 1e-10}
    assert zero == set()
    assert (model.start.types.weight.grad.abs().amax(1) > 1e-8).all()


def test_a_sparse_network_computes_its_layers_one_after_the_other() -> None:
    model, batch = build("Spexphormer", 3), sparse([12, 9, 7, 4])
    x, types = model.pre_mp(model.encoder.node.encoder(batch.x)), model.start.types.weight
    for layer, edges, targets in zip(model.layers, batch.layer_edges, batch.layer_sizes[1:], strict=True):
        x = layer.along_sampled_edges(x, edges, targets, types)
    pred, true = model(batch.clone())
    torch.testing.assert_close(pred, model.head.mlp(x), **ROUNDING)
    assert torch.equal(true, batch.y)


def test_predictions_of_several_draws_are_averaged_and_labels_are_there_once() -> None:
    model = build("Spexphormer", 1)
    first, second = sparse([10, 4]), sparse([10, 4])
    second.y = first.y
    # the targets of both draws come first
    rows = [torch.cat([torch.arange(4) + 4 * draw, torch.arange(8, 14) + 6 * draw]) for draw in range(2)]
    x, edges = torch.empty(20, 5, dtype=torch.double), []
    for draw, batch in enumerate((first, second)):
        x[rows[draw]] = batch.x
        source, target, kind = batch.layer_edges[0]
        edges.append(torch.stack([rows[draw][source], target + 4 * draw, kind]))
    both = Data(x=x, y=first.y.repeat(2), layer_sizes=[20, 8], layer_edges=[torch.cat(edges, 1)], num_draws=2)
    pred, true = model(both)
    mean = (model(first.clone())[0] + model(second.clone())[0]) / 2
    torch.testing.assert_close(pred, mean, **ROUNDING)
    assert torch.equal(true, first.y)


def test_the_head_of_masked_nodes_reads_the_mask_of_the_batch() -> None:
    model = create_model("Spexphormer", 5, CLASSES, network="Spexphormer", num_layers=1, dim=8, head="node").double()
    batch = sparse([10, 4])
    batch.split, batch.val_mask = "val", torch.ones(4, dtype=torch.bool)
    assert model(batch)[0].shape == (4, CLASSES)


def test_the_fault_of_the_public_network_is_a_key() -> None:
    model = repeat_faults(build("Spexphormer"), {"network.spexphormer.mix_heads": True})
    assert isinstance(model.layers[0].attention[0], MixedHeadsAttention)
    assert not isinstance(build("Spexphormer").layers[0].attention[0], MixedHeadsAttention)


@pytest.mark.parametrize(
    ("layer_type", "num_heads", "batch", "message"),
    [
        ("ScoreEstimator", 2, lambda: sparse([12, 9, 4]), "holds sampled edges.*for whole graphs"),
        ("Spexphormer", 2, graphs, "holds whole graphs.*for sampled edges"),
        ("GINE", 2, None, "unknown name"),
        ("Spexphormer", 3, None, "multiple"),
    ],
)
def test_a_batch_and_settings_that_do_not_fit_are_refused(
    layer_type: str, num_heads: int, batch: Any, message: str
) -> None:
    with pytest.raises((InputError, ConfigError), match=message):
        build(layer_type, num_heads=num_heads)(batch())
