"""The network GritTransformer: whole recorded models, sizes of the public files, and a drop-in branch of GPS layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.networks.create_model import create_model
from tests.attention.test_grit_recorded import rename_layer
from tests.recorded import check, load

TINY = {"num_layers": 2, "dim": 8, "num_heads": 2, "pooling": "add"}
NAMES = {
    "rrwp_abs_encoder.fc.": "encoder.rrwp.node.",
    "rrwp_rel_encoder.fc.": "encoder.rrwp.pair.",
    "encoder.node_encoder.": "encoder.node.0.",
    "encoder.edge_encoder.": "encoder.edge.",
    **{f"post_mp.FC_layers.{number}.": f"head.mlp.{2 * number}." for number in range(3)},
    **{f"post_mp.layer_post_mp.model.0.Layer_{number}.layer.model.": f"head.mlp.{4 * number}." for number in range(2)},
    "post_mp.layer_post_mp.model.1.model.": "head.mlp.8.",
}


def grit(in_dim: int, out_dim: int, node: str, settings: dict[str, Any], **options: Any) -> nn.Module:
    return create_model(
        "",
        in_dim,
        out_dim,
        network="GritTransformer",
        node_encoder=f"{node}+RRWP",
        settings={"gt.layer_type": "GRIT", **settings},
        **options,
    )


def rename(name: str) -> str:
    if name.startswith("layers."):
        _, number, rest = name.split(".", 2)
        return f"layers.{number}.{rename_layer(rest)}"
    for old, new in NAMES.items():
        if name.startswith(old):
            return name.replace(old, new, 1)
    return name


@pytest.mark.parametrize("name", ["graph_zinclike", "node_patternlike"])
def test_whole_models_match_the_recorded_original(name: str) -> None:
    steps = {"posenc_RRWP.ksteps": 5, "posenc_RRWP.precision": "float64", "posenc_RRWP.where": "batch"}
    if name == "graph_zinclike":
        types = {"dataset.node_encoder_num_types": 6, "dataset.edge_encoder_num_types": 3}
        encoders = {"edge_dim": 1, "edge_encoder": "TypeDictEdge"}
        model = grit(1, 1, "TypeDictNode", steps | types, head="san_graph", **encoders, **TINY)
    else:
        head = {"gnn.layers_post_mp": 3, "gnn.l2norm": True}  # as GraphGym has it
        model = grit(3, 4, "LinearNode", steps | head, head="inductive_node", **TINY)
    model = model.double()
    # a row of zeros for pairs without a value, which complete pairs do not have, and nothing trains
    record = {key: value for key, value in load(f"G_grit/model_{name}").items() if not key.endswith("padding")}

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        number = int(inputs["batch"][-1]) + 1
        label = torch.zeros(number if name == "graph_zinclike" else len(inputs["x"]))
        return {"pred": model(Batch(y=label, _num_graphs=number, **inputs))[0]}

    check(model, forward, record, rename)


# Public file -> width, heads, layers, ksteps; columns in and out; node encoder, its types, edge encoder, its types;
# head and its layers; parameters of node encoder, edge encoder, each RRWP encoder, all layers, head.
SAN, GRAPH, NODE = ("san_graph", 3), "graph", "inductive_node"
FILES: dict[str, tuple[Any, ...]] = {
    "zinc": ((64, 8, 10, 21), (1, 1), ("TypeDictNode", 21, "TypeDictEdge", 4), SAN, (1344, 256, 1344, 466560, 2625)),
    "zinc-full": (
        (64, 8, 10, 21),
        (1, 1),
        ("TypeDictNode", 28, "TypeDictEdge", 4),
        SAN,
        (1792, 256, 1344, 466560, 2625),
    ),
    "mnist": ((52, 4, 3, 18), (3, 10), ("LinearNode", 0, "LinearEdge", 0), (GRAPH, 3), (208, 104, 936, 93912, 6042)),
    "cifar10": ((52, 4, 3, 18), (5, 10), ("LinearNode", 0, "LinearEdge", 0), (GRAPH, 2), (312, 104, 936, 93912, 3286)),
    "pattern": ((64, 8, 10, 21), (3, 1), ("LinearNode", 0, "DummyEdge", 0), (NODE, 3), (256, 64, 1344, 466560, 8385)),
    "cluster": ((48, 8, 16, 32), (7, 6), ("LinearNode", 0, "DummyEdge", 0), (NODE, 3), (384, 48, 1536, 423168, 4998)),
    "peptides-func": ((96, 4, 4, 17), (9, 10), ("Atom", 0, "Bond", 0), (GRAPH, 1), (16704, 1248, 1632, 421248, 970)),
    "peptides-struct": (
        (96, 8, 4, 24),
        (9, 11),
        ("Atom", 0, "Bond", 0),
        (GRAPH, 2),
        (16704, 1248, 2304, 416640, 10379),
    ),
    "pcqm4mv2": ((256, 8, 16, 21), (9, 1), ("Atom", 0, "Bond", 0), SAN, (44544, 3328, 5376, 11735040, 41217)),
}


@pytest.mark.parametrize("name", FILES)
def test_every_part_has_as_many_parameters_as_that_of_the_public_file(name: str) -> None:
    (dim, heads, layers, ksteps), (dim_in, dim_out), (node, nodes, edge, edges), (head, depth), expected = FILES[name]
    settings = {
        "posenc_RRWP.ksteps": ksteps,
        "gnn.layers_post_mp": depth,
        "dataset.node_encoder_num_types": nodes,
        "dataset.edge_encoder_num_types": edges,
    }
    options = {"num_layers": layers, "dim": dim, "num_heads": heads, "head": head, "edge_encoder": edge, "edge_dim": 1}
    model = grit(dim_in, dim_out, node, settings, **options)
    features, rrwp = model.encoder.node, model.encoder.rrwp
    parts = (features, model.encoder.edge, rrwp.node, rrwp.pair, model.layers, model.head)
    counts = [sum(parameter.numel() for parameter in part.parameters()) for part in parts]
    assert counts == [*expected[:3], *expected[2:]]
    assert sum(parameter.numel() for parameter in model.parameters()) == sum(counts)


def batch_of(sizes: list[int], edges_per_node: int = 2) -> Batch:
    graphs = []
    for size in sizes:
        source = torch.arange(size).repeat_interleave(edges_per_node)
        target = torch.randint(size, (len(source),))
        edges = torch.cat([torch.stack([source, target]), torch.stack([target, source])], 1)
        attr = torch.randn(edges.size(1), 2, dtype=torch.float64)
        x = torch.randn(size, 3, dtype=torch.float64)
        graphs.append(Data(x=x, edge_index=edges, edge_attr=attr, y=torch.zeros(1)))
    return Batch.from_data_list(graphs)


IN_BATCH = {"posenc_RRWP.where": "batch", "posenc_RRWP.ksteps": 4, "posenc_RRWP.precision": "float64"}
SMALL = {
    "num_layers": 2,
    "dim": 8,
    "num_heads": 2,
    "head": "inductive_node",
    "edge_encoder": "LinearEdge",
    "edge_dim": 2,
}


def branch(layer_type: str, **settings: Any) -> nn.Module:
    """Return a network of GPS layers with GRIT as a branch."""
    return create_model(
        layer_type, 3, 4, node_encoder="LinearNode+RRWP", settings=IN_BATCH | settings, **SMALL
    ).double()


MODELS = {
    "network": lambda: grit(3, 4, "LinearNode", IN_BATCH, **SMALL).double(),
    "branch": lambda: branch("GatedGCN+GRIT"),
    "alone": lambda: branch("None+GRIT"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_graph_alone_and_its_nodes_in_another_order_give_the_same_predictions(name: str) -> None:
    torch.manual_seed(2)
    model, batch = MODELS[name](), batch_of([5, 1, 7])
    model.train()(batch.clone())  # running statistics that are not those of the start
    expected = model.eval()(batch.clone())[0]
    alone = torch.cat([model(Batch.from_data_list([graph]))[0] for graph in batch.to_data_list()])
    torch.testing.assert_close(alone, expected, rtol=1e-9, atol=1e-9)
    graph = batch.to_data_list()[2]
    order = torch.randperm(7)
    graph.x, graph.edge_index = graph.x[order], order.argsort()[graph.edge_index]
    shuffled = model(Batch.from_data_list([graph]))[0]
    torch.testing.assert_close(shuffled, expected[6:][order], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("sizes", "edges"), [([4, 3], 2), ([4, 3], 0), ([1], 0), ([1, 1], 1)])
def test_graphs_of_any_shape_train(name: str, sizes: list[int], edges: int) -> None:
    torch.manual_seed(2)
    model = MODELS[name]().train()
    prediction, _ = model(batch_of(sizes, edges))
    prediction.square().sum().backward()
    assert prediction.isfinite().all()
    assert all(one.grad is None or one.grad.isfinite().all() for one in model.parameters())


def test_the_second_layer_of_a_branch_reads_the_pairs_that_the_first_one_made() -> None:
    model = branch("GatedGCN+GRIT").train()
    model(batch_of([5, 4]))[0].pow(3).sum().backward()
    first, last = (layer.attention[0].pairs.linear.weight.grad for layer in model.layers)
    assert first.abs().max() > 1e-10
    assert last is None or not last.any()  # nothing reads those of the last one


def test_gradient_checkpointing_changes_no_gradient() -> None:
    torch.manual_seed(2)
    batch, grads = batch_of([5, 4]), []
    for recompute in (False, True):
        torch.manual_seed(4)
        model = grit(3, 4, "LinearNode", IN_BATCH | {"share.gradient_checkpointing": recompute}, **SMALL).double()
        model.eval()(batch.clone())[0].square().sum().backward()
        grads.append([torch.zeros(()) if one.grad is None else one.grad for one in model.parameters()])
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)


def test_settings_reach_the_layers() -> None:
    settings = {
        **{"grit.bn_momentum": 0.3, "grit.bn_no_runner": True, "grit.rezero": True},
        **{"gt.grit.clamp": 2.0, "gt.grit.use_bias": True, "gt.grit.deg_scaler": False, "gt.grit.O_e": False},
        **{"gt.dropout": 0.2, "gt.attn_dropout": 0.4},
    }
    model = grit(3, 4, "LinearNode", settings, **SMALL)
    layer, last = model.layers
    attention, [norm] = layer.attention[0], layer.attention_norm
    assert (norm.momentum, norm.running_mean) == (0.3, None)
    assert (attention.pairs.norm[0].momentum, attention.pairs.norm[0].running_mean) == (0.3, None)
    assert (attention.clamp, attention.degree_factors, attention.pairs.linear) == (2.0, None, None)
    assert attention.key.bias is not None
    assert (attention.dropout, attention.out_dropout.p, attention.pairs.dropout) == (0.4, 0.2, 0.2)
    assert layer.ffn_alpha.shape == attention.pairs.alpha.shape == (1, 1)
    assert (attention.pairs.update, last.attention[0].pairs.update) == (True, False)
