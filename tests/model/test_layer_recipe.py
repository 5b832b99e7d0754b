"""Layer recipes: each choice against a formula written out, and what a whole network makes of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import FullAttention, GraphContext
from graphgps_kmip.errors import ConfigError, InputError
from graphgps_kmip.model import GPSLayer, LayerRecipe
from graphgps_kmip.model.layer_recipe import JUMPS, NORM_PLACES, ORDERS, JumpingConnections
from graphgps_kmip.mpnn import GCN, GatedGCN
from graphgps_kmip.networks.create_model import create_model

DIM, HEADS = 8, 2
SWITCHES = ("local_residual", "attention_residual", "ffn")


def context_of(sizes: tuple[int, ...] = (5, 1, 4)) -> GraphContext:
    ptr = torch.tensor([0, *torch.tensor(sizes).cumsum(0)])
    ends = [torch.randint(0, n, (2, 2 * n)) + start for n, start in zip(sizes, ptr, strict=False)]
    return GraphContext(torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)), ptr, torch.cat(ends, 1))


def layer_of(recipe: LayerRecipe, branches: str = "both", norm: str = "layer") -> GPSLayer:
    local = None if branches == "attention" else GCN(DIM)
    attention = None if branches == "local" else FullAttention(DIM, HEADS)
    return GPSLayer(DIM, local, attention, 0.0, norm, nn.Tanh, recipe).double()


def written_out(layer: GPSLayer, x: Tensor, context: GraphContext) -> Tensor:
    """Return the layer's output by one formula for each recipe, with one branch of each kind at most."""
    recipe, pre = layer.recipe, layer.recipe.norm_place == "pre"
    has = {"local": len(layer.local) > 0, "attention": len(layer.attention) > 0}
    residual = {"local": recipe.local_residual, "attention": recipe.attention_residual}

    def branch(kind: str, z: Tensor) -> Tensor:
        if kind == "local":
            return layer.local[0](z, context.edge_index, None)[0]
        factor = layer.attention_scale[0].factor if recipe.attention_layer_scale else 1
        return factor * layer.attention[0](z, context)

    def norm(kind: str, z: Tensor) -> Tensor:
        return (layer.local_norm if kind == "local" else layer.attention_norm)[0](z, context)

    def alone(kind: str, z: Tensor) -> Tensor:  # one branch, with its norm and residual
        rest = z if residual[kind] else torch.zeros_like(z)
        if kind == "local" and recipe.local_residual_map == "linear":
            rest = z @ layer.local_residual[0].weight.T + layer.local_residual[0].bias
        return rest + branch(kind, norm(kind, z)) if pre else norm(kind, rest + branch(kind, z))

    kinds = [kind for kind in ("local", "attention") if has[kind]]
    if len(kinds) == 1:
        h = alone(kinds[0], x)
    elif recipe.order == "local_first":
        h = alone("attention", alone("local", x))
    elif pre:
        rest = x if any(residual.values()) else torch.zeros_like(x)
        h = rest + sum(branch(kind, norm(kind, x)) for kind in kinds)
    else:
        h = alone("local", x) + alone("attention", x)
    if not recipe.ffn:
        return torch.tanh(h)
    first, second = layer.ffn[0], layer.ffn[3]
    if pre:
        z = layer.ffn_norm(h, context)
        return h + second(torch.tanh(first(z)))
    return layer.ffn_norm(h + second(torch.tanh(first(h))), context)


@pytest.mark.parametrize("branches", ["both", "local", "attention"])
@pytest.mark.parametrize(("order", "place"), list(product(ORDERS, NORM_PLACES)))
@pytest.mark.parametrize("switches", list(product([True, False], repeat=3)), ids=str)
def test_a_layer_is_the_formula_of_its_recipe(
    switches: tuple[bool, ...], order: str, place: str, branches: str
) -> None:
    torch.manual_seed(0)
    options = dict(zip(SWITCHES, switches, strict=True)) | {"norm_place": place, "order": order}
    layer, context = layer_of(LayerRecipe(**options, attention_layer_scale=0.01), branches), context_of()
    for scale in layer.attention_scale:
        nn.init.normal_(scale.factor)
    x = torch.randn(10, DIM, dtype=torch.float64)
    torch.testing.assert_close(layer(x, context)[0], written_out(layer, x, context), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("place", NORM_PLACES)
def test_dropout_of_the_output_drops_nothing_else_and_in_training_only(place: str) -> None:
    torch.manual_seed(0)
    recipe = LayerRecipe(ffn=False, norm_place=place, dropout_place="output")
    layer = GPSLayer(DIM, GCN(DIM), FullAttention(DIM, HEADS), 0.5, "layer", nn.Tanh, recipe).double()
    x, context = torch.randn(10, DIM, dtype=torch.float64), context_of()
    whole = layer.eval()(x, context)[0]
    torch.testing.assert_close(whole, written_out(layer, x, context), rtol=1e-12, atol=1e-12)
    dropped = layer.train()(x, context)[0]
    rest = dropped != 0
    torch.testing.assert_close(dropped[rest], 2 * whole[rest], rtol=1e-12, atol=1e-12)
    assert 0.3 < rest.double().mean() < 0.7  # of 80 numbers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_residual_map": "linear", "norm_place": "pre"}, "needs recipe.local_residual True and recipe.norm_"),
        ({"local_residual_map": "linear", "local_residual": False}, "needs recipe.local_residual True and"),
        ({"dropout_place": "output"}, "recipe.dropout_place output needs recipe.ffn False"),
    ],
    ids=str,
)
def test_choices_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LayerRecipe(**options)


def test_learned_factors_of_attention_start_at_their_value() -> None:
    factor = layer_of(LayerRecipe(attention_layer_scale=0.01)).attention_scale[0].factor
    assert factor.tolist() == pytest.approx([0.01] * DIM)


def edges_of_none() -> tuple[Tensor, GraphContext]:
    nodes, none = torch.randn(3, DIM, dtype=torch.float64), torch.zeros(0, DIM, dtype=torch.float64)
    return nodes, GraphContext.of(None, torch.zeros(3, DIM)).with_edges(torch.zeros(2, 0, dtype=torch.long), none)


OTHER_RESIDUALS = [
    LayerRecipe(norm_place="pre"),
    LayerRecipe(local_residual=False),
    LayerRecipe(local_residual_map="linear"),
]


@pytest.mark.parametrize("recipe", OTHER_RESIDUALS, ids=str)
def test_a_residual_inside_message_passing_is_refused_where_the_recipe_has_none(recipe: LayerRecipe) -> None:
    outside = r"GatedGCN adds its input itself.*gt\.gatedgcn\.residual False and gt\.gatedgcn\.outer_residual True"
    with pytest.raises(InputError, match=outside):
        GPSLayer(DIM, GatedGCN(DIM), None, recipe=recipe)
    with pytest.raises(InputError, match=r"gt\.gatedgcn\.outer_residual True needs gt\.gatedgcn\.residual False"):
        GatedGCN(DIM, outer_residual=True)


@pytest.mark.parametrize("recipe", [LayerRecipe(), *OTHER_RESIDUALS], ids=str)
def test_a_residual_that_is_left_to_the_layer_is_that_of_the_recipe(recipe: LayerRecipe) -> None:
    torch.manual_seed(0)
    local = GatedGCN(DIM, residual=False, outer_residual=True)
    layer = GPSLayer(DIM, local, None, norm="none", recipe=replace(recipe, ffn=False)).double()
    nodes, context = edges_of_none()
    message = layer.local[0](nodes, context.edge_index, context.edge_attr)[0]
    residual = layer.local_residual[0](nodes)  # as it is, but for a linear map
    expected = message + (residual if recipe.local_residual else 0)
    torch.testing.assert_close(layer(nodes, context)[0], expected.relu())
    assert (expected.relu() - message.relu()).abs().max() > 0.1 or not recipe.local_residual


@pytest.mark.parametrize("mode", JUMPS[1:])
def test_jumping_connections_join_the_outputs_of_all_layers(mode: str) -> None:
    torch.manual_seed(0)
    outputs = [torch.randn(6, DIM) for _ in range(3)]
    join = JumpingConnections(DIM, 3, mode)
    stacked = torch.stack(outputs)
    expected = {
        "sum": lambda: stacked.sum(0),
        "max": lambda: stacked.amax(0),
        "cat": lambda: torch.cat(outputs, 1) @ join.linear.weight.T + join.linear.bias,
    }[mode]()
    torch.testing.assert_close(join(outputs), expected)


def batch_of(sizes: tuple[int, ...] = (6, 1, 9)) -> Batch:
    torch.manual_seed(1)
    graphs = [
        Data(torch.randn(n, 3), torch.randint(0, n, (2, 3 * n)), torch.randn(3 * n, 2), y=torch.tensor([0]))
        for n in sizes
    ]
    return Batch.from_data_list(graphs)


def network(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    options = {"num_layers": 3, "dim": DIM, "num_heads": HEADS, "edge_dim": 2} | options
    return create_model("GINE+kMIP", 3, 2, **options)


@pytest.mark.parametrize("mode", JUMPS[1:])
def test_the_head_reads_the_joined_layers(mode: str) -> None:
    model, seen = network(jump=mode).eval(), []
    hooks = [layer.register_forward_hook(lambda _m, _i, out: seen.append(out[0])) for layer in model.layers]
    read: list[Tensor] = []
    hooks.append(model.head.register_forward_pre_hook(lambda _m, args: read.append(args[0].x)))
    model(batch_of())
    assert len(seen) == 3
    torch.testing.assert_close(read[0], model.jump(seen))


def test_feature_dropout_drops_features_of_the_data_in_training_only() -> None:
    model, seen = network(feature_dropout=0.5), []
    model.encoder.register_forward_pre_hook(lambda _m, args: seen.append(args[0].x))
    batch = batch_of()
    x = batch.x.clone()
    model.eval()(batch.clone())
    assert torch.equal(seen.pop(), x)
    model.train()(batch.clone())
    assert set((seen[0] / x).unique().tolist()) == {0.0, 2.0}
    assert torch.equal(batch.x, x)


def test_edge_dropout_leaves_out_the_same_edges_in_all_layers_in_training_only() -> None:
    rate, model, seen = 0.4, network(edge_dropout=0.4), []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _m, args: seen.append(args[1]))
    batch = Batch.from_data_list([batch_of().get_example(i % 3) for i in range(90)])
    edges, attr = batch.edge_index.clone(), batch.edge_attr.clone()
    model.eval()(batch.clone())
    assert all(torch.equal(context.edge_index, edges) for context in seen)
    seen.clear()
    trained = batch.clone()
    model.train()(trained)
    assert {context.edge_index.size(1) for context in seen} == {seen[0].edge_index.size(1)}
    assert seen[0].edge_index.size(1) == len(seen[0].edge_attr)
    share = seen[0].edge_index.size(1) / edges.size(1)
    assert share == pytest.approx(1 - rate, abs=0.06)  # 1,440 edges: 4.6 standard deviations
    assert all(torch.equal(context.edge_index, seen[0].edge_index) for context in seen)
    assert torch.equal(trained.edge_index, edges)  # what the head and the metrics read
    assert len(trained.edge_attr) == len(attr)
    first = seen[0].edge_index
    model.train()(batch.clone())
    assert not torch.equal(seen[-1].edge_index, first)


def test_an_unknown_choice_is_one_line_with_near_misses() -> None:
    with pytest.raises(InputError, match=r"recipe\.jump: expected one of none, .* got 'concat'"):
        LayerRecipe(jump="concat")
    with pytest.raises(ConfigError, match=r"recipe\.order.*parallel"):
        network(settings={"recipe.order": "paralel"})
