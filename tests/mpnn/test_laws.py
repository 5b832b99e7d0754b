"""The laws of message passing, for every row of the table and the variants of `LAYERS`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.mpnn.cases import DIM, LAYERS, Graph, build, call, joined, make_graph

ROUNDING = {"rtol": 1e-10, "atol": 1e-10}  # float64 sums of a few hundred terms in another order
SIZES = [5, 1, 9, 2]


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> nn.Module:
    return build(request.param)


def test_a_graph_alone_gives_the_same_output_as_in_a_batch(layer: nn.Module) -> None:
    graphs = [make_graph(size) for size in SIZES]
    alone = [call(layer, graph) for graph in graphs]
    for actual, expected in zip(zip(*alone, strict=True), call(layer, joined(graphs)), strict=True):
        torch.testing.assert_close(torch.cat(actual), expected, **ROUNDING)


def test_permuting_nodes_and_edges_permutes_the_output(layer: nn.Module) -> None:
    graph = joined([make_graph(size) for size in SIZES])
    torch.manual_seed(1)
    nodes, edges = torch.randperm(len(graph.x)), torch.randperm(len(graph.edge_attr))
    place = torch.empty_like(nodes)
    place[nodes] = torch.arange(len(nodes))  # old node -> new place
    moved = Graph(graph.x[nodes], place[graph.edge_index[:, edges]], graph.edge_attr[edges], graph.encoding[nodes])
    (x, edge_attr), (x_moved, edge_moved) = call(layer, graph), call(layer, moved)
    torch.testing.assert_close(x_moved, x[nodes], **ROUNDING)
    torch.testing.assert_close(edge_moved, edge_attr[edges], **ROUNDING)


@pytest.mark.parametrize(("num_nodes", "num_edges"), [(0, 0), (1, 0), (1, 1), (3, 0), (2, 1)])
def test_tiny_graphs_train_with_finite_outputs_and_gradients(layer: nn.Module, num_nodes: int, num_edges: int) -> None:
    graph = make_graph(num_nodes, num_edges)
    x, edge_attr = call(layer.train(), graph, graph.x.clone().requires_grad_())
    assert x.shape == (num_nodes, DIM)
    assert edge_attr.shape == (num_edges, DIM)
    (x.square().sum() + edge_attr.square().sum()).backward()
    assert x.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


def test_gradients_reach_the_inputs_and_every_parameter(layer: nn.Module) -> None:
    graph = joined([make_graph(size) for size in SIZES])
    tensors = {name: getattr(graph, name).clone().requires_grad_() for name in ("x", "edge_attr", "encoding")}
    x, edge_attr = call(layer, graph._replace(**tensors))
    (x.square().sum() + edge_attr.square().sum()).backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-10, name
    assert (tensors["x"].grad.abs().amax(1) > 1e-10).all()
    assert (tensors["encoding"].grad is not None) == (getattr(layer, "gate", None) is not None)


def test_gradients_equal_finite_differences(layer: nn.Module) -> None:
    graph, parameters = make_graph(4, 6), dict(layer.named_parameters())
    tensors = [t.clone().requires_grad_() for t in (graph.x, graph.edge_attr, graph.encoding)]

    def run(x: Tensor, edge_attr: Tensor, encoding: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
        changed = dict(zip(parameters, values, strict=True))
        encoding = encoding if getattr(layer, "gate", None) is not None else None
        return torch.func.functional_call(layer, changed, (x, graph.edge_index, edge_attr, encoding))

    assert torch.autograd.gradcheck(run, (*tensors, *parameters.values()), fast_mode=True)


def test_eval_mode_repeats_and_the_state_dict_carries_the_whole_function(
    layer: nn.Module, request: pytest.FixtureRequest
) -> None:
    graph = joined([make_graph(size) for size in SIZES])
    with torch.no_grad():
        for tensor in layer.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor))
    first = call(layer, graph)
    torch.testing.assert_close(call(layer, graph), first, rtol=0, atol=0)
    other = build(request.node.callspec.params["layer"])
    assert not torch.equal(call(other, graph)[0], first[0])
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(call(other, graph), first, rtol=0, atol=0)


def test_float32_is_close_to_float64_and_bfloat16_autocast_trains(layer: nn.Module) -> None:
    graph = joined([make_graph(size) for size in SIZES])
    expected, layer = call(layer, graph), layer.float()
    graph = graph._replace(**{name: getattr(graph, name).float() for name in ("x", "edge_attr", "encoding")})
    actual = call(layer, graph)
    assert actual[0].dtype == torch.float32
    torch.testing.assert_close([t.double() for t in actual], list(expected), rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x, _ = call(layer, graph)
    torch.testing.assert_close(x.double(), expected[0], rtol=0.1, atol=0.1)  # bfloat16 has 8 bits
    x.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters() if p.grad is not None)


def test_inputs_are_not_modified_in_place(layer: nn.Module) -> None:
    graph = joined([make_graph(size) for size in SIZES])
    before = [tensor.clone() for tensor in graph]
    call(layer.train(), graph)
    torch.testing.assert_close(list(graph), before, rtol=0, atol=0)


def test_missing_edge_features_are_refused_with_the_mend_or_not_needed(layer: nn.Module) -> None:
    graph = make_graph(4)
    name, gate = type(layer).__name__, getattr(layer, "gate", None)
    arguments = (graph.x, graph.edge_index, None, graph.encoding if gate is not None else None)
    if name in ("GCN", "APPNP", "GIN", "GraphSAGE", "GENConv") or not getattr(layer, "use_edge_attr", True):
        x, edge_attr = layer(*arguments)
        assert x.isfinite().all()
        assert edge_attr is None
        return
    with pytest.raises(ValueError, match=f"^{name}.* needs edge features.*DummyEdge"):
        layer(*arguments)


def test_an_encoding_without_a_gate_and_a_gate_without_encoding_are_refused(layer: nn.Module) -> None:
    graph = make_graph(4)
    if getattr(layer, "gate", None) is not None:
        with pytest.raises(ValueError, match="set posenc_EquivStableLapPE.enable True"):
            layer(graph.x, graph.edge_index, graph.edge_attr)
        return
    with pytest.raises(ValueError, match=f"^{type(layer).__name__} does not read EquivStableLapPE"):
        layer(graph.x, graph.edge_index, graph.edge_attr, graph.encoding)
