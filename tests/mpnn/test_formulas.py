"""Message passing layers against their formulas, written out node by node and edge by edge in float64."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from graphgps_kmip.mpnn import GAT, GINE, GATv2
from tests.mpnn.cases import DIM, Graph, build, call, joined, make_graph

Edges = list[tuple[int, Tensor]]  # the edges into one node: source, features


def gate(layer: nn.Module, graph: Graph, i: int, j: int) -> Tensor | float:
    if getattr(layer, "gate", None) is None:
        return 1.0
    return torch.sigmoid(layer.gate.mlp((graph.encoding[i] - graph.encoding[j]).norm()[None] ** 2))


def gatedgcn(layer: nn.Module, graph: Graph, i: int, edges: Edges) -> Tensor:
    x, total = graph.x, torch.zeros(DIM).double()
    weights = [gate(layer, graph, i, j) * torch.sigmoid(layer.C(e) + layer.D(x[i]) + layer.E(x[j])) for j, e in edges]
    for weight, (j, _) in zip(weights, edges, strict=True):
        total = total + weight / (sum(weights) + 1e-6) * layer.B(x[j])
    return x[i] + torch.relu(layer.node_norm((layer.A(x[i]) + total)[None])[0])


def gcn(layer: nn.Module, graph: Graph, i: int, edges: Edges) -> Tensor:
    degree = graph.edge_index[1].bincount(minlength=len(graph.x)).double() + 1
    total = sum(graph.x[j] / (degree[i] * degree[j]).sqrt() for j in [i, *(j for j, _ in edges)])
    return layer.conv.lin.weight @ total + layer.conv.bias


def appnp(layer: nn.Module, graph: Graph, i: int, edges: Edges) -> Tensor:  # noqa: ARG001
    """The steps of equation 4, put together: powers of the normalised adjacency matrix."""
    start, alpha = layer.linear(graph.x), layer.conv.alpha
    matrix = torch.eye(len(start)).double()
    matrix.index_put_((graph.edge_index[1], graph.edge_index[0]), torch.ones(()).double(), accumulate=True)
    degree = matrix.sum(1)
    powers = [torch.linalg.matrix_power(matrix / degree.outer(degree).sqrt(), k) for k in range(layer.conv.K + 1)]
    near = sum(alpha * (1 - alpha) ** k * power for k, power in enumerate(powers[:-1]))
    return (near + (1 - alpha) ** layer.conv.K * powers[-1])[i] @ start


def gin(layer: nn.Module, graph: Graph, i: int, edges: Edges) -> Tensor:
    return layer.conv.nn(graph.x[i] + sum(graph.x[j] for j, _ in edges))


def gine(layer: nn.Module, graph: Graph, i: int, edges: Edges) -> Tensor:
    total = graph.x[i] + sum(gate(layer, graph, i, j) * torch.relu(graph.x[j] + e) for j, e in edges)
    return layer.inner(total[None])[0]


def with_loop(i: int, edges: Edges) -> Edges:
    features = [e for _, e in edges]
    return [*edges, (i, torch.stack(features).mean(0) if features else torch.zeros(DIM).double())]


def gat(layer: nn.Module, graph: Graph, i: int, edges: Edges) -> Tensor:
    conv, heads, edges = layer.conv, layer.conv.heads, with_loop(i, edges)
    values = torch.stack([conv.lin(graph.x[j]).view(heads, -1) for j, _ in edges])  # (J, H, D)
    score = (values * conv.att_src[0]).sum(-1) + (conv.lin(graph.x[i]).view(heads, -1) * conv.att_dst[0]).sum(-1)
    if layer.use_edge_attr:
        score = score + torch.stack([(conv.lin_edge(e).view(heads, -1) * conv.att_edge[0]).sum(-1) for _, e in edges])
    weight = leaky_relu(score, 0.2).softmax(0)
    return (weight[..., None] * values).sum(0).flatten() + conv.bias


def gatv2(layer: nn.Module, graph: Graph, i: int, edges: Edges) -> Tensor:
    conv, heads, edges = layer.conv, layer.conv.heads, with_loop(i, edges)
    values = torch.stack([conv.lin_l(graph.x[j]).view(heads, -1) for j, _ in edges])  # (J, H, D)
    edge = torch.stack([conv.lin_edge(e).view(heads, -1) for _, e in edges])
    hidden = leaky_relu(values + conv.lin_r(graph.x[i]).view(heads, -1) + edge, 0.2)
    weight = (hidden * conv.att[0]).sum(-1).softmax(0)
    return (weight[..., None] * values).sum(0).flatten() + conv.bias


def graphsage(layer: nn.Module, graph: Graph, i: int, edges: Edges) -> Tensor:
    conv = layer.conv
    mean = torch.stack([graph.x[j] for j, _ in edges]).mean(0) if edges else torch.zeros(DIM).double()
    return conv.lin_l(mean) + conv.lin_r.weight @ graph.x[i]


def genconv(layer: nn.Module, graph: Graph, i: int, edges: Edges) -> Tensor:
    total = graph.x[i]
    if edges:
        message = torch.stack([torch.relu(graph.x[j] + e) + 1e-7 for j, e in edges])
        total = total + (message.softmax(0) * message).sum(0)
    return layer.conv.mlp(total[None])[0]


def pna(layer: nn.Module, graph: Graph, i: int, edges: Edges) -> Tensor:
    conv, parts = layer.conv, torch.zeros(3, DIM).double()
    if edges:
        message = torch.stack(
            [conv.pre_nns[0](torch.cat([graph.x[i], graph.x[j], conv.edge_encoder(e)])) for j, e in edges]
        )
        parts = torch.stack([message.mean(0), message.amax(0), message.sum(0)])
    return conv.lin(conv.post_nns[0](torch.cat([graph.x[i], parts.flatten()])))


FORMULAS: dict[str, Callable[[nn.Module, Graph, int, Edges], Tensor]] = {
    "GatedGCN": gatedgcn,
    "GatedGCN {'equivstable_pe': True}": gatedgcn,
    "GCN": gcn,
    "APPNP": appnp,
    "APPNP {'steps': 3, 'alpha': 0.4}": appnp,
    "GIN": gin,
    "GINE": gine,
    "GINE {'equivstable_pe': True, 'inner': 'mlp_dropout'}": gine,
    "GINE {'inner': 'norm_linear'}": gine,
    "GAT {'heads': 2}": gat,
    "GAT {'heads': 4, 'use_edge_attr': False}": gat,
    "GATv2 {'heads': 2}": gatv2,
    "GraphSAGE": graphsage,
    "GENConv": genconv,
    "PNA": pna,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_layer_gives_what_its_formula_says_of_each_node(name: str) -> None:
    layer, graph = build(name), joined([make_graph(6), make_graph(1, 0), make_graph(4, 2)])
    with torch.no_grad():
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.5)
    expected = []
    for i in range(len(graph.x)):
        into = (graph.edge_index[1] == i).nonzero().flatten()
        expected.append(
            FORMULAS[name](layer, graph, i, [(int(graph.edge_index[0, e]), graph.edge_attr[e]) for e in into])
        )
    torch.testing.assert_close(call(layer, graph)[0], torch.stack(expected), rtol=1e-10, atol=1e-10)


def test_gine_drops_inside_only_where_its_inner_network_says_so() -> None:
    graph = make_graph(30)
    for inner, random in (("mlp", False), ("norm_linear", False), ("mlp_dropout", True)):
        layer = GINE(DIM, 0.5, inner=inner).double().train()
        assert torch.equal(call(layer, graph)[0], call(layer, graph)[0]) != random, inner


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GINE(8, inner="linear"), "gt.gine.inner must be one of mlp, mlp_dropout, norm_linear, got 'linear'"),
        (lambda: GAT(8, heads=3), "gt.gat.heads: the width 8 must be a multiple of it, got 3"),
        (lambda: GATv2(8, heads=0), "gt.gatv2.heads: the width 8 must be a multiple of it, got 0"),
    ],
)
def test_options_that_cannot_be_are_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
