"""The network PPGT: options reach its parts, initial values of public models, wrong settings are one clear line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch_geometric.data import Batch, Data

from graphgps_kmip import create_model
from graphgps_kmip.errors import ConfigError

SMALL = {
    "posenc_RRWP.where": "batch",
    "posenc_RRWP.ksteps": 4,
    "ppgt.stem_hidden": [8],
    "gnn.head": "linear_graph",
    "dataset.edge_encoder": False,
}
CLASS = {"ppgt.node_features": "rrwp+class_token", "ppgt.class_layers": 2, "model.graph_pooling": "cls_token"}


def model_of(**settings: Any) -> nn.Module:
    torch.manual_seed(0)
    settings = SMALL | {key.replace("__", "."): value for key, value in settings.items()}
    return create_model("", 3, 2, network="PPGT", num_layers=3, dim=8, num_heads=2, settings=settings)


def graph(nodes: int) -> Data:
    torch.manual_seed(nodes)
    edges = torch.randint(nodes, (2, 2 * nodes))
    y = torch.zeros(1)
    return Data(x=torch.randn(nodes, 3), edge_index=edges, edge_attr=torch.randn(2 * nodes, 4), num_nodes=nodes, y=y)


def batch_of(*sizes: int) -> Batch:
    return Batch.from_data_list([graph(size) for size in sizes])


def test_heads_of_graphs_and_of_nodes_have_the_same_options() -> None:
    for head, rows in (("linear_graph", 3), ("linear_node", 12)):
        group = f"head.{head}"
        options = {f"{group}.post_pooling_norm": "rms_norm", f"{group}.out_bn": True, f"{group}.out_dim": 6}
        model = create_model(
            "", 3, 2, network="PPGT", num_layers=1, dim=8, num_heads=2, settings=SMALL | {"gnn.head": head} | options
        )
        pred, _ = model.train()(batch_of(5, 3, 4))
        assert pred.shape == (rows, 6)
        torch.testing.assert_close(pred.mean(0), torch.zeros(6), atol=1e-4, rtol=0)
        normed = []
        model.head.head.mlp.register_forward_pre_hook(lambda _, inputs, seen=normed: seen.append(inputs[0]))
        model.eval()(batch_of(5, 3, 4))
        torch.testing.assert_close(normed[0].square().mean(1), torch.ones(rows), rtol=1e-4, atol=1e-4)


def test_dropouts_reach_their_places() -> None:
    settings = {"gt.attn_dropout": 0.1, "gt.dropout": 0.3, "ppgt.branch_dropout": 0.4, "ppgt.drop_path": 0.2}
    model = create_model("", 3, 2, network="PPGT", dim=8, num_heads=2, settings=SMALL | settings | CLASS)
    for layer in (*model.layers, *model.head.class_layers):
        attention = layer.attention[0] if isinstance(layer.attention, nn.ModuleList) else layer.attention
        assert attention.dropout == 0.1
        assert layer.ffn[2].p == 0.3
        assert layer.attention_branch.dropout.p == layer.ffn_branch.dropout.p == 0.4
    for layer in model.layers:
        assert layer.attention_branch.drop_path.rate == layer.ffn_branch.drop_path.rate == 0.2


def test_activation_and_layer_scale() -> None:
    assert isinstance(model_of(ppgt__act="silu").layers[0].ffn[1], nn.SiLU)
    assert isinstance(model_of(gnn__act="elu").layers[0].ffn[1], nn.ELU)
    scaled = model_of(ppgt__layer_scale=1e-4).layers[0]
    torch.testing.assert_close(scaled.attention_branch.layer_scale.detach(), torch.full((8,), 1e-4))
    assert model_of().layers[0].attention_branch.layer_scale is None


@pytest.mark.parametrize("settings", [{}, CLASS, {"share.gradient_checkpointing": True}], ids=str)
def test_a_graph_alone_has_the_prediction_that_it_has_in_a_batch_and_the_batch_stays_as_it_was(settings: dict) -> None:
    model = create_model("", 3, 2, network="PPGT", dim=8, num_heads=2, settings=SMALL | settings).double().eval()
    batch = batch_of(4, 1, 6)
    batch.x, batch.edge_attr = batch.x.double(), batch.edge_attr.double()
    before = {key: value.clone() for key, value in batch.to_dict().items() if torch.is_tensor(value)}
    whole = model(batch)[0]
    after = {key: value for key, value in batch.to_dict().items() if torch.is_tensor(value)}
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    for number, size in enumerate((4, 1, 6)):
        single = batch_of(size)
        single.x = single.x.double()
        torch.testing.assert_close(model(single)[0][0], whole[number], rtol=1e-6, atol=1e-8)  # RRWP is float32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ppgt.class_layers": 1}, "asks for class_token in ppgt.node_features and model.graph_pooling cls_token"),
        ({"model.graph_pooling": "cls_token"}, "asks for class_token in ppgt.node_features and ppgt.class_layers"),
        ({"ppgt.node_features": "rrwp+degree"}, "ppgt.node_features: unknown name 'degree'"),
        ({"ppgt.pair_features": "order"}, "ppgt.pair_features: unknown name 'order'"),
        ({"ppgt.norm": "ada"}, "ppgt.norm"),
        ({"ppgt.act": "gel"}, "ppgt.act: unknown name 'gel'. Did you mean gelu"),
        ({"gnn.dim_inner": 16}, "gt.dim_hidden"),
        ({"ppgt.drop_path": 1.0}, "ppgt.drop_path"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused_by_their_keys(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_model("", 3, 2, network="PPGT", dim=8, num_heads=2, settings=SMALL | settings)


MODELS: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "ppgt_models.yaml").read_text())
INITIAL = [name for name, row in MODELS.items() if "initial" in row]


def public_model(name: str, **settings: Any) -> nn.Module:
    row = MODELS[name]
    settings = row["settings"] | settings
    return create_model("", row["dim_in"], row["dim_out"], network="PPGT", edge_dim=row["edge_dim"], settings=settings)


def test_the_printed_number_of_parameters_of_zinc_is_that_of_a_head_that_halves_widths() -> None:
    with torch.device("meta"):
        model = public_model("ZINC", **{"head.linear_graph.halve_widths": True})
    assert sum(parameter.numel() for parameter in model.parameters()) == 487_425


@pytest.mark.parametrize("name", INITIAL)
def test_initial_values_are_drawn_as_in_the_public_model(name: str) -> None:
    torch.manual_seed(0)
    parameters = dict(public_model(name).named_parameters())
    for key, (std, largest) in MODELS[name]["initial"].items():
        weight, numbers = parameters[key].detach(), parameters[key].numel()
        if std == 0:
            assert weight.std(unbiased=False) < 1e-6, key
            assert abs(float(weight.abs().max()) - largest) < 1e-4, f"{key}, rounded to 4 digits"
            continue
        # both are estimates from as many numbers: six standard deviations of their ratio
        assert abs(float(weight.std()) / std - 1) < 6 / numbers**0.5, key
        if numbers >= 128:  # a uniform distribution ends at 1.73 standard deviations
            assert (float(weight.abs().max()) / float(weight.std()) < 1.9) == (largest / std < 1.9), key
