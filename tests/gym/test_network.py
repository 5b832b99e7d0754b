"""Networks by name: what the config makes of them, their heads, whole runs, and GraphGym's own network."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.models.gnn import GNN

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.graphgym_registries import choose_package
from graphgps_kmip.gym.network_building import build_network
from graphgps_kmip.model.feature_encoding import UnitRows
from graphgps_kmip.mpnn import GINE
from graphgps_kmip.registry import components
from tests.gym.networks import DATA, configure, graphs

pytestmark = pytest.mark.usefixtures("few_digits")


@pytest.mark.parametrize(
    ("network", "layer_type"),
    [
        ("GPSModel", ""),
        ("MultiModel", ""),
        *[("custom_gnn", name) for name in ("gcnconv", "gatconv", "gineconv", "gatedgcnconv", "GENConv", "GAT")],
        *[("gnn", name) for name in ("gcnconv", "gatconv", "ginconv", "gatedgcnconv", "gineconv", "generaledgeconv")],
        *[("SANTransformer", name) for name in ("SANLayer", "SAN2Layer")],
        *[(name, "Transformer") for name in ("Performer", "BigBird", "SingleModel")],
    ],
)
def test_every_network_predicts_each_graph_as_if_it_were_alone(network: str, layer_type: str) -> None:
    key = "gnn.layer_type" if network in ("custom_gnn", "gnn") else "gt.layer_type"
    configure(DATA | {"model.type": network, "gt.gamma": 0.3} | ({key: layer_type} if layer_type else {}))
    model, batch = build_network(network, 5, 3).double().eval(), graphs()
    batch.x, batch.edge_attr = batch.x.double(), batch.edge_attr.double()
    pred, true = model(batch.clone())
    assert true.tolist() == [5, 1, 3]
    for i, graph in enumerate(batch.to_data_list()):
        torch.testing.assert_close(model(Batch.from_data_list([graph]))[0][0], pred[i])
    model.train()(batch.clone())[0].square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.layers[0].training
    assert any(p.grad is not None for p in model.layers[0].parameters())
    model.train()(Batch.from_data_list([batch.get_example(1)]))  # one node


def test_layers_under_our_names_read_their_own_settings() -> None:
    configure(DATA | {"gnn.layer_type": "GAT", "gt.n_heads": 4})
    conv = build_network("custom_gnn", 5, 3).layers[0].conv
    assert (conv.use_edge_attr, conv.conv.heads) == (True, 4)


def test_dropout_of_custom_gnn_is_where_the_public_codes_have_it() -> None:
    configure(DATA | {"gnn.layer_type": "gineconv", "gnn.dropout": 0.3})
    layer = build_network("custom_gnn", 5, 3).layers[0]
    assert layer.dropout.p == 0.3
    assert isinstance(layer.act, nn.ReLU)
    cfg.gnn.gine_inner = "mlp_dropout"
    layer = build_network("custom_gnn", 5, 3).layers[0]
    assert isinstance(layer.conv, GINE)
    assert layer.conv.inner[-1].p == 0.3
    assert layer.dropout.p == 0.0
    assert isinstance(layer.act, nn.Identity)
    cfg.gnn.layer_type = "gatedgcnconv"
    layer = build_network("custom_gnn", 5, 3).layers[0]
    assert layer.conv.dropout.p == 0.3
    assert layer.dropout.p == 0.0


def test_hidden_rows_of_heads_have_length_one_where_the_config_says_so() -> None:
    configure(DATA | {"gnn.act": "elu", "gnn.dropout": 0.3})
    for name in ("graph", "node", "inductive_node", "inductive_edge", "link_pred"):
        cfg.gnn.head, cfg.gnn.l2norm = name, False
        plain = build_network("custom_gnn", 5, 3).head.mlp
        assert [type(module) for module in plain] == [nn.Linear, nn.ELU, nn.Dropout, nn.Linear]
        assert plain[2].p == 0.3
        cfg.gnn.l2norm = True
        unit = build_network("custom_gnn", 5, 3).head.mlp
        assert [type(module) for module in unit] == [nn.Linear, nn.ReLU, UnitRows, nn.Dropout, nn.Linear]
        assert unit[3].p == 0.0
    cfg.gnn.head = "mlp_graph"  # LRGB's: as the config says, always
    head = build_network("custom_gnn", 5, 3).head
    assert isinstance(head.mlp[1], nn.ELU)
    assert head.dropout.p == head.mlp[2].p == 0.3


def test_input_layers_normalise_rows_as_the_config_says_in_every_network() -> None:
    layers = {"SANTransformer": "SANLayer", "GECO": "GECO"}
    layers |= dict.fromkeys(("Spexphormer", "Exphormer"), "ScoreEstimator")
    without = {"GCN", "GAT", "APPNP", "PPGT", "BaseGraphNet"}  # have no input layers
    for network in components("network").keys() - without:
        for is_unit in (True, False):
            layer_type = layers.get(network, "GCN")
            configure(DATA | {"model.type": network, "gt.layer_type": layer_type, "posenc_RRWP.enable": True})
            cfg.gnn.layers_pre_mp, cfg.gnn.l2norm = 1, is_unit
            cfg.gnn.head = "node" if network in ("Polynormer", "SGFormer") else "graph"
            output = any(isinstance(module, UnitRows) for module in build_network(network, 5, 3).pre_mp)
            assert output == is_unit


def test_data_of_another_width_enters_through_an_encoder_or_an_input_layer() -> None:
    configure(DATA | {"dataset.node_encoder": False, "dataset.edge_encoder": False})
    with pytest.raises(ConfigError, match="gnn.layers_pre_mp 1"):
        build_network("custom_gnn", 5, 3)
    cfg.gnn.layers_pre_mp = 1
    assert build_network("custom_gnn", 5, 3).pre_mp[0].weight.shape == (8, 5)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"gnn.layer_type": "gcn"}, "gnn.layer_type: unknown name 'gcn'"),
        ({"gnn.layer_type": "gineconv", "gnn.gine_inner": "mpl"}, "inner must be one of"),
        ({"model.type": "gnn", "gnn.layer_type": "gcncov"}, "gnn.layer_type: unknown name 'gcncov'. Did you mean"),
        ({"model.type": "gnn", "gnn.stage_type": "skip"}, "gnn.stage_type: unknown name 'skip'"),
        (
            {"model.type": "gnn", "gnn.stage_type": "skipconcat", "gnn.layer_type": "gineconv"},
            "keeps its width, got 16 to 8 columns",
        ),
        ({"gnn.act": "rleu"}, "gnn.act: unknown name 'rleu'"),
        ({"gnn.layer_type": "gineconv", "gnn.layer_act": "geluu"}, "gnn.layer_act: unknown name 'geluu'"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(settings: dict[str, str], line: str) -> None:
    configure(DATA | {"model.type": "custom_gnn"} | settings)
    with pytest.raises(ValueError, match=line):
        build_network(cfg.model.type, 5, 3)


def test_only_the_multi_model_hands_edge_features_from_branch_to_branch() -> None:
    for network, chained in (("MultiModel", True), ("GPSModel", False)):
        configure(DATA | {"model.type": network, "gt.layer_type": "GatedGCN+GINE"})
        assert [layer.chain_edges for layer in build_network(network, 5, 3).layers] == [chained] * cfg.gt.layers


@pytest.mark.parametrize(("layer_act", "expected"), [("", nn.GELU), ("relu", nn.ReLU)])
def test_the_head_of_san_has_the_activation_of_the_layers(layer_act: str, expected: type[nn.Module]) -> None:
    configure(DATA | {"model.type": "GPSModel", "gnn.head": "san_graph", "gnn.act": "gelu", "gnn.layer_act": layer_act})
    network = build_network("GPSModel", 5, 3)
    acts = [module for module in network.head.mlp if not isinstance(module, nn.Linear)]
    assert {type(act) for act in (*acts, network.layers[0].ffn[1])} == {expected}


@pytest.mark.parametrize("stage", ["stack", "skipsum", "skipconcat"])
@pytest.mark.parametrize("head", ["graph", "inductive_node"])
def test_the_stock_network_with_all_its_parts_equals_torch_geometrics(stage: str, head: str) -> None:
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
    choose_package("of GraphGym")  # names that both have are GraphGym's
    reference = GNN(5, 3).double()
    cfg.gnn.head = head
    network_twin = build_network("gnn", 5, 3).double()
    values = list(reference.state_dict().values())
    assert [value.shape for value in values] == [value.shape for value in network_twin.state_dict().values()]
    network_twin.load_state_dict(dict(zip(network_twin.state_dict(), values, strict=True)))
    batch = graphs()
    batch.x = batch.x.double()
    network_twin.eval(), reference.eval()
    hidden = reference.mp(reference.pre_mp(reference.encoder(batch.clone())))
    for training in (False, True):
        reference.post_mp.train(training), network_twin.head.train(training)
        mlp = reference.post_mp.layer_post_mp
        expected = mlp(hidden.x) if head == "inductive_node" else reference.post_mp(hidden.clone())[0]
        torch.testing.assert_close(network_twin(batch.clone())[0], expected)


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
