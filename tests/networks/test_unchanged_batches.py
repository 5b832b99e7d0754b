"""What every network promises of the batches that it is given: they stay as they are, a plain `Data` is one of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import RandomNodeLoader

from graphgps_kmip import batch_of, create_model
from graphgps_kmip.encoding import AddEncoding
from graphgps_kmip.errors import InputError
from graphgps_kmip.registry import entries

LAP = {"dataset.node_encoder_name": "LinearNode+LapPE", "posenc_LapPE.model": "DeepSet", "posenc_LapPE.dim_pe": 4}
LAP |= {"posenc_LapPE.eigen.max_freqs": 4}
RRWP = {"posenc_RRWP.where": "batch", "posenc_RRWP.ksteps": 4}
PAIRS = {"dataset.node_encoder_name": "LinearNode+RRWP", **RRWP}
TABLES = {f"posenc_GraphormerBias.num_{table}": 40 for table in ("spatial_types", "in_degrees", "out_degrees")}
TOKENS = {"dataset.node_encoder_name": "LinearNode+GraphormerBias", **TABLES, "graphormer.use_graph_token": True}
TOKENS |= {"model.graph_pooling": "graph_token"}  # changes nodes, edges and boundaries of the graphs
# Network -> its layers, and settings; all others have neither.
LAYERS = {
    **{f"GPSModel of {name}": ("GPSModel", name, {}) for name in entries("attention")},
    **{f"GPSModel of {name}": ("GPSModel", name, {"gt.pna.edge_dim": 8}) for name in entries("message_passing")},
    "GPSModel of BiasedTransformer": ("GPSModel", "BiasedTransformer", TOKENS),
    "GPSModel of GRIT": ("GPSModel", "GRIT", PAIRS),
    "GPSModel of sL2": ("GPSModel", "sL2", PAIRS),
    "GPSModel with input dropout": ("GPSModel", "GCN+kMIP", {"recipe.feature_dropout": 0.2}),
    "GPSModel with LapPE": ("GPSModel", "GatedGCN+kMIP", LAP),
    "MultiModel": ("MultiModel", "GINE+GatedGCN+kMIP", {}),
    "SingleModel": ("SingleModel", "Transformer", {}),
    "SANTransformer": ("SANTransformer", "SAN2Layer", {}),
    "custom_gnn": ("custom_gnn", "gatedgcnconv", {}),
    "GritTransformer": ("GritTransformer", "GRIT", PAIRS),
    "Graphormer": ("Graphormer", "", TOKENS),
    "PPGT": ("PPGT", "", RRWP | {"ppgt.stem_hidden": [8]}),
    "Spexphormer": ("Spexphormer", "ScoreEstimator", {}),
    "GECO": ("GECO", "GECO", {}),
}
OF_ONE_GRAPH = ("Polynormer", "SGFormer")
OF_GRAPHGYM = "gnn"  # there once graphgps_kmip.gym is imported, whose tests have it
NAMED = {row[0] for row in LAYERS.values()} | {OF_GRAPHGYM}
LAYERS |= {name: (name, "", {}) for name in entries("network") if name not in NAMED}


def network(name: str, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    kind, layer_type, options = LAYERS[name]
    sizes = {"num_layers": 2, "dim": 8, "num_heads": 2, "edge_dim": 0 if kind in ("GCN", "GAT", "APPNP") else 2}
    model = create_model(layer_type, 5, 3, network=kind, **sizes, settings=options | settings)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm1d):
            nn.init.normal_(norm.running_mean)
    return model.eval()


def graph(nodes: int) -> Data:
    torch.manual_seed(nodes)
    source = torch.randint(nodes, (2, 2 * nodes))
    edges = torch.cat([source, source.flip(0)], dim=1)
    data = Data(x=torch.randn(nodes, 5), edge_index=edges, edge_attr=torch.randn(4 * nodes, 2), y=torch.zeros(1))
    data.expander_edge_index = torch.randint(nodes, (2, 3 * nodes))
    data = AddEncoding("LapPE", eigen={"max_freqs": 4})(data)
    return AddEncoding("GraphormerBias")(data)


def assert_unchanged(batch: Data, before: dict[str, Any]) -> None:
    after = batch.to_dict()
    assert list(after) == list(before)
    for key, value in after.items():
        assert torch.equal(value, before[key]) if isinstance(value, Tensor) else value == before[key], key


@pytest.mark.parametrize("name", LAYERS)
def test_a_network_called_twice_gives_the_same_leaves_the_batch_and_takes_a_plain_data(name: str) -> None:
    model, batch = network(name), Batch.from_data_list([graph(7)] if name in OF_ONE_GRAPH else [graph(7), graph(4)])
    before = copy.deepcopy(batch.to_dict())
    first, second = (model(batch)[0] for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert_unchanged(batch, before)
    data = graph(7)
    before_data = copy.deepcopy(data.to_dict())
    expected, label = model(Batch.from_data_list([data]))
    pred, same_label = model(data)
    torch.testing.assert_close(pred, expected, rtol=0, atol=0)
    assert torch.equal(label, same_label)
    assert_unchanged(data, before_data)
    model.train()(batch)
    assert_unchanged(batch, before)


@pytest.mark.parametrize("name", ["GPSModel with LapPE", "PPGT", "GritTransformer", "Graphormer"])
def test_a_batch_vector_without_the_first_node_of_each_graph_divides_them_too(name: str) -> None:
    model, batch = network(name), Batch.from_data_list([graph(7), graph(4)])
    values = {key: value for key, value in batch.to_dict().items() if key != "ptr"}
    torch.testing.assert_close(model(Data(**values))[0], model(batch)[0], rtol=0, atol=0)


def test_the_subgraphs_of_a_loader_of_torch_geometric_are_batches() -> None:
    model, data = network("GPSModel of kMIP", **{"gnn.head": "node"}), graph(20)
    data.train_mask, data.y = torch.arange(20) < 9, torch.arange(20)
    (part,) = RandomNodeLoader(data, num_parts=1)
    before = copy.deepcopy(part.to_dict())
    pred, label = model(part, split="train")
    assert (len(pred), sorted(label.tolist())) == (9, list(range(9)))
    assert_unchanged(part, before)


@pytest.mark.parametrize("head", ["node", "linear_node"])
def test_the_split_is_an_argument_and_without_one_all_nodes_are_predicted(head: str) -> None:
    model, data = network("GPSModel of kMIP", **{"gnn.head": head}), graph(8)
    data.test_mask, data.y = torch.arange(8) % 2 == 0, torch.arange(8)
    pred, label = model(data)
    assert label.tolist() == list(range(8))
    masked, rows = model(data, split="test")
    assert rows.tolist() == [0, 2, 4, 6]
    torch.testing.assert_close(masked, pred[::2])
    assert "split" not in data
    assert torch.equal(model(batch_of([data], "test"))[1], rows)
    assert torch.equal(model(batch_of([data]))[1], label)


def test_a_split_that_the_graph_has_no_mask_of_is_refused() -> None:
    model = network("GPSModel of kMIP", **{"gnn.head": "node"})
    with pytest.raises(InputError, match="nodes of val_mask, which the graph lacks"):
        model(graph(5), split="val")
