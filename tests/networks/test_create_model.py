"""`create_model`: the same networks as from YAML settings, from keyword arguments, without GraphGym."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.graphgym.config import cfg, set_cfg
from yacs.config import CfgNode

import graphgps_kmip.gym  # noqa: F401 (registers with GraphGym, with which the models are compared)
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.network_building import build_network
from graphgps_kmip.networks.create_model import create_model
from graphgps_kmip.networks.network_settings import NETWORK_DEFAULTS, network_settings
from graphgps_kmip.ranges import read_default
from graphgps_kmip.registry import entries, register
from tests.gym.networks import DATA, configure
from tests.processes import preloaded

# What `create_model` is called with below, as settings of a YAML file.
YAML = DATA | {"gt.layers": 2, "gt.n_heads": 2, "model.graph_pooling": "mean", "gnn.layers_post_mp": 1}
CALL = {"in_dim": 5, "out_dim": 3, "edge_dim": 2, "num_layers": 2, "dim": 8, "num_heads": 2}
PAIRED = ("BiasedTransformer", "sL2")  # read pairs of nodes that an encoding makes


@pytest.fixture(autouse=True)
def _open_config() -> Iterator[None]:
    yield
    cfg.defrost()


def graphs() -> Batch:
    sizes = (5, 2, 3)
    return Batch.from_data_list(
        [
            Data(x=torch.randn(n, 5), edge_index=torch.randint(n, (2, 2 * n)), edge_attr=torch.randn(2 * n, 2), y=n)
            for n in sizes
        ]
    )


def seeded(build: Any) -> nn.Module:
    torch.manual_seed(3)
    return build().eval()


def assert_equal(model: nn.Module, reference: nn.Module) -> None:
    state, other = model.state_dict(), reference.state_dict()
    assert state.keys() == other.keys()
    for name, value in state.items():
        torch.testing.assert_close(value, other[name], rtol=0, atol=0)
    batch = graphs()
    outputs: list[Tensor] = []
    for network in (model, reference):
        torch.manual_seed(4)
        outputs.append(network(batch.clone())[0])
    torch.testing.assert_close(*outputs, rtol=0, atol=0)


LOCAL = [*entries("message_passing"), "None"]
ATTENTIONS = [*(name for name in entries("attention") if name not in PAIRED), "None"]
PAIRS = [(local, attention) for attention in ATTENTIONS for local in LOCAL]
# Each once: the first of one list with the first of the other, and so on around.
FEW = {(LOCAL[i % len(LOCAL)], ATTENTIONS[i % len(ATTENTIONS)]) for i in range(max(len(LOCAL), len(ATTENTIONS)))}


@pytest.mark.parametrize(
    ("local", "attention"), [pytest.param(*pair, marks=[] if pair in FEW else [pytest.mark.thorough]) for pair in PAIRS]
)
def test_every_pair_of_branches_equals_the_network_from_yaml(local: str, attention: str) -> None:
    layer_type = f"{local}+{attention}"
    if layer_type == "None+None":
        return
    network = "GPSModel"
    settings = {"gt.pna.edge_dim": 8, "prep.use_exp_edges": False}
    configure(YAML | {"model.type": network, "gt.layer_type": layer_type} | settings)
    reference = seeded(lambda: build_network(network, 5, 3))
    assert_equal(seeded(lambda: create_model(layer_type, **CALL, settings=settings)), reference)


@pytest.mark.parametrize(
    ("network", "layer_type"),
    [("MultiModel", "GINE+GatedGCN+kMIP"), ("SingleModel", "Transformer"), ("SANTransformer", "SAN2Layer")]
    + [("Performer", ""), ("BigBird", ""), ("Graphormer", "")]
    + [("custom_gnn", name) for name in ("gcnconv", "gatedgcnconv", "GENConv")],
)
def test_every_other_network_equals_that_from_yaml(network: str, layer_type: str) -> None:
    key = "gnn.layer_type" if network == "custom_gnn" else "gt.layer_type"
    named = {key: layer_type} if layer_type else {}
    settings = {"gnn.layers_mp": 2, "graphormer.num_layers": 2, "graphormer.num_heads": 2}
    configure(YAML | settings | {"model.type": network} | named)
    reference = seeded(lambda: build_network(network, 5, 3))
    assert_equal(seeded(lambda: create_model(layer_type, network=network, **CALL)), reference)


def test_options_have_their_yaml_names_and_defaults() -> None:
    torch.manual_seed(0)
    model = create_model("GatedGCN+kMIP", in_dim=9, out_dim=10, num_layers=4, k=7, layer_norm=True, batch_norm=False)
    assert len(model.layers) == 4
    assert model.layers[0].attention[0].k == 7
    assert type(model.layers[0].ffn_norm.norm).__name__ == "GraphLayerNorm"
    assert len(create_model("", 9, 10, network="Polynormer", global_layers=4).layers[0].network.global_attn) == 4
    changed = create_model("kMIP", 9, 10, settings={"gt.kmip.k": 3, "gnn.head": "inductive_node"})
    assert changed.layers[0].attention[0].k == 3
    node = CfgNode()
    set_cfg(node)
    plain = network_settings({})
    for key, entry in NETWORK_DEFAULTS.items():
        group, name = key.split(".")
        assert plain[group][name] == node[group][name] == read_default(entry), key


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"layer_type": "GatedGCN+kMPI"}, r"gt\.layer_type: unknown name 'kMPI'\. Did you mean kMIP"),
        ({"layer_type": "kMIP", "num_layer": 2}, r"unknown option 'num_layer'\. Did you mean.*num_layers"),
        ({"layer_type": "kMIP", "k": 0}, r"gt\.kmip\.k: expected a whole number"),
        ({"layer_type": "kMIP", "settings": {"gt.kmip.kk": 2}}, r"'gt\.kmip\.kk'\. Did you mean gt\.kmip\.k"),
        ({"layer_type": "kMIP", "network": "GPS"}, r"model\.type: unknown name 'GPS'"),
        ({"layer_type": "kMIP", "head": "grph"}, r"gnn\.head: unknown name 'grph'\. Did you mean graph"),
        ({"layer_type": "GAT+GATv2+kMIP", "use_edge_attr": False}, r"gt\.gat\.use_edge_attr or gt\.gatv2\."),
    ],
)
def test_mistakes_are_named_with_near_misses(call: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_model(**{"in_dim": 5, "out_dim": 3} | call)


@pytest.mark.usefixtures("own_registry")
def test_a_users_components_are_built_with_their_options() -> None:
    @register("attention", "Scaled")
    class Scaled(nn.Module):
        def __init__(self, dim: int, num_heads: int, dropout: float = 0.0, *, factor: float = 2.0) -> None:
            super().__init__()
            self.shape, self.factor = (dim, num_heads, dropout), factor

        def forward(self, x: Tensor, context: object) -> Tensor:  # noqa: ARG002
            return x * self.factor

    layer = create_model("GCN+Scaled", 5, 3, dim=8, factor=3.0).layers[0]
    assert (layer.attention[0].factor, layer.attention[0].shape) == (3.0, (8, 8, 0.0))


def test_neither_graphgym_nor_its_config_is_imported() -> None:
    code = """
import sys, torch
from torch_geometric.data import Batch, Data
from graphgps_kmip import create_model
graph = Data(x=torch.randn(6, 9), edge_index=torch.randint(6, (2, 12)), y=torch.tensor([1]))
model = create_model("GatedGCN+kMIP", in_dim=9, out_dim=10, num_layers=4, k=3)
assert model(Batch.from_data_list([graph, graph]))[0].shape == (2, 10)
loaded = [name for name in sys.modules if name.startswith(("torch_geometric.graphgym", "yacs"))]
loaded += [name for name in sys.modules if name.startswith(tuple(f"graphgps_kmip.{package}" for package in OTHERS))]
assert not loaded, loaded
"""
    done = preloaded("-c", f'OTHERS = ("gym", "data", "train", "report", "results", "experiments")\n{code}')
    assert done.returncode == 0, done.stderr
