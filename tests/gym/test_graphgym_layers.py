"""Layers and joined encoders in GraphGym's registries, as torch_geometric's own GNN builds them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.graphgym import register as graphgym
from torch_geometric.graphgym.models.gnn import GNN

from graphgps_kmip.encoding import AddEncoding
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.network_building import build_network
from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.registry import named, register
from tests.gym.networks import DATA, configure

RRWP = {"dataset__node_encoder_name": "LinearNode+RRWP", "posenc_RRWP__where": "batch", "posenc_RRWP__ksteps": 4}
TABLES = {f"posenc_GraphormerBias__num_{table}": 40 for table in ("spatial_types", "in_degrees", "out_degrees")}
BIAS = {"dataset__node_encoder_name": "LinearNode+GraphormerBias", **TABLES, "graphormer__num_heads": 2}
PAIRS = {"BiasedTransformer": BIAS, "GRIT": RRWP, "sL2": RRWP}  # encoders that make features of pairs


def graphs() -> Batch:
    torch.manual_seed(1)
    add, made = AddEncoding("LapPE", eigen={"max_freqs": 4}), []
    for n in (5, 1, 6):
        edges = torch.randint(n, (2, 3 * n))
        data = Data(x=torch.randn(n, 5), edge_index=edges, edge_attr=torch.randn(3 * n, 2), y=torch.tensor([n]))
        data.expander_edge_index = torch.randint(n, (2, n))
        made.append(AddEncoding("GraphormerBias")(AddEncoding("RWSE", kernel={"times": [1, 2, 3]})(add(data))))
    return Batch.from_data_list(made)


def configured(**settings: Any) -> None:
    named_keys = {key.replace("__", "."): value for key, value in settings.items()}
    configure(DATA | {"dataset.edge_dim": 2, "model.type": "gnn", "gnn.stage_type": "skipsum"} | named_keys)


LAYERS = named("attention", "message_passing")


@pytest.mark.parametrize("name", LAYERS)
def test_torch_geometrics_own_network_builds_and_trains_every_layer(name: str) -> None:
    configured(gnn__layer_type=name, gt__pna__edge_dim=8, **PAIRS.get(name, {}))
    torch.manual_seed(0)
    network = GNN(5, 3)
    layer, batch = network.mp.layer0.layer.eval(), network.encoder(graphs())
    out = layer(batch.clone())
    if LAYERS[name].kind == "attention":
        expected = layer.conv(batch.x, GraphContext.from_data(batch)), batch.edge_attr
    else:
        expected = layer.conv(batch.x, batch.edge_index, batch.edge_attr)
    torch.testing.assert_close((out.x, out.edge_attr), expected, rtol=0, atol=0)
    pred, _ = network.train()(graphs())
    pred.square().sum().backward()
    assert pred.shape == (3, 3)
    assert pred.isfinite().all()
    assert any(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in layer.parameters())


def test_options_come_from_the_config_group_of_the_layer() -> None:
    configured(gnn__layer_type="kMIP", gt__kmip__k=7, gt__n_heads=4, gt__attn_dropout=0.25)
    attention = GNN(5, 3).mp.layer1.layer.conv
    assert (attention.k, attention.num_heads, attention.dropout) == (7, 4, 0.25)
    configured(gnn__layer_type="GatedGCN", gt__gatedgcn__residual=False)
    assert not GNN(5, 3).mp.layer0.layer.conv.residual


@pytest.mark.parametrize("name", ["kMIP", "Exphormer", "GINE"])
def test_our_form_of_the_network_gives_a_layer_the_same_graphs(name: str) -> None:
    configured(gnn__layer_type=name)
    reference = GNN(5, 3).double().eval()
    built = build_network("gnn", 5, 3).double().eval()
    values = list(reference.state_dict().values())
    built.load_state_dict(dict(zip(built.state_dict(), values, strict=True)))
    batch = graphs().apply(lambda value: value.double() if value.is_floating_point() else value)
    torch.testing.assert_close(built(batch)[0], reference(batch.clone())[0])


def test_a_layer_between_different_widths_is_refused() -> None:
    configured(gnn__layer_type="kMIP", gnn__stage_type="skipconcat")
    with pytest.raises(ConfigError, match="gnn.layer_type kMIP keeps its width, got 16 to 8 columns"):
        GNN(5, 3)


def test_encoders_under_joined_names_are_those_that_the_network_builds() -> None:
    assert "Atom+LapPE" in graphgym.node_encoder_dict
    assert "Bond+RWSEEdge" in graphgym.edge_encoder_dict
    settings = {"posenc_LapPE__dim_pe": 2, "posenc_LapPE__model": "DeepSet", "posenc_LapPE__eigen__max_freqs": 4}
    settings |= {"posenc_RWSE__dim_pe": 2, "posenc_RWSE__model": "Linear", "posenc_RWSE__kernel__times": [1, 2, 3]}
    settings |= {"gnn__layer_type": "GINE"}
    configured(dataset__node_encoder_name="LinearNode+LapPE+RWSE", **settings)
    encoder = GNN(5, 3).encoder.eval()
    built = build_network("gnn", 5, 3).encoder.eval()
    built.load_state_dict(dict(zip(built.state_dict(), encoder.state_dict().values(), strict=True)))
    batch = graphs()
    for key in ("x", "edge_attr"):
        torch.testing.assert_close(encoder(batch.clone())[key], built(batch.clone())[key], rtol=0, atol=0)


# A GPS layer with the names of GraphGPS's, which the branches of docs/extending.md are put into.
FORK = """
{top}
class GPSLayer(torch.nn.Module):
    def __init__(self, dim_h, global_model_type, num_heads, attn_dropout=0.0):
        super().__init__()
        if global_model_type == "None":
            self.self_attn = None
{constructor}
        else:
            raise ValueError(global_model_type)
        self.global_model_type = global_model_type

    def forward(self, batch):
        h = batch.x
        if self.self_attn is not None:
            if self.global_model_type == "Transformer":
                pass
{forward}
            else:
                raise RuntimeError(self.global_model_type)
            batch.x = h + h_attn
        return batch
"""


def test_the_branches_for_a_fork_of_graphgps_run_as_the_page_shows_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    (code,) = (code for code in re.findall(r"```py\n(.*?)```", page, re.S) if "global_model_type" in code)
    names: dict[str, Any] = {"torch": torch}
    exec(FORK.format(**dict(zip(("top", "constructor", "forward"), re.split(r"\n# .*\n", code), strict=True))), names)
    layer, batch = names["GPSLayer"](8, "kMIP", 2), graphs()
    batch.x = torch.randn(12, 8)
    torch.testing.assert_close(layer(batch.clone()).x, batch.x + layer.self_attn(batch.x, batch.batch))


@pytest.mark.usefixtures("own_registry")
def test_a_later_encoder_is_found_under_joined_names_too() -> None:
    @register("node_encoder", "Later")
    def later(dim: int) -> torch.nn.Module:
        """Nothing."""
        return torch.nn.Linear(dim, dim)

    assert "Later+LapPE" in graphgym.node_encoder_dict
