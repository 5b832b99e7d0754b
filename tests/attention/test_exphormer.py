"""Exphormer attention against the formula, and the laws with expander edges and virtual nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention import clamped_attention as clamped
from graphgps_kmip.attention.clamped_attention import clamped_attention
from graphgps_kmip.attention.exphormer import ExphormerAttention
from graphgps_kmip.native import unavailable_reason
from graphgps_kmip.testing.laws import graph_alone, make_batch, permuted

DIM, HEADS = 8, 2
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}
SIZES = [7, 1, 12, 5]


def full_batch(sizes: list[int] = SIZES) -> tuple[Tensor, GraphContext]:
    """Random nodes with edges and expander edges."""
    x, context = make_batch(sizes, DIM)
    return x, replace(context, edge_sets={"expander": (make_batch(sizes, DIM, 3)[1].edge_index, None)})


def run(attention: ExphormerAttention, x: Tensor, context: GraphContext) -> tuple[Tensor, Tensor]:
    out, state = attention(x, context, attention.initial_state(context))
    return out, state.virtual


def test_every_edge_has_the_features_of_its_kind() -> None:
    x, context = full_batch([3, 2])
    attention = ExphormerAttention(DIM, HEADS, num_virt_node=2).double()
    start = attention.initial_state
    expander = context.edge_sets["expander"][0]
    edges, features = [*context.edge_index.T.tolist(), *expander.T.tolist()], [*context.edge_attr]
    features += [start.expander.weight[0]] * expander.size(1)
    for number in range(2):
        for node in range(5):
            virtual = 5 + 2 * number + int(context.batch[node])
            edges += [[node, virtual], [virtual, node]]
            features += [start.to_virtual.weight[number], start.from_virtual.weight[number]]
    nodes = torch.cat([x, *(start.virtual.weight[[number]].expand(2, -1) for number in range(2))])
    q, k, v = (layer(nodes).unflatten(1, (HEADS, -1)) for layer in (attention.query, attention.key, attention.value))
    e = attention.edge(torch.stack(features)).unflatten(1, (HEADS, -1))
    edges = torch.tensor([[*edge, row] for row, edge in enumerate(edges)]).T
    expected = clamped_attention(q, k, v, e, edges).flatten(1)
    torch.testing.assert_close(torch.cat(run(attention, x, context)), expected, **ROUNDING)


@pytest.mark.skipif(unavailable_reason(clamped.KERNEL) is not None, reason="no C compiler")
def test_the_c_loop_walks_the_edges_of_a_layer() -> None:
    x, context = full_batch()
    state = ExphormerAttention(DIM, HEADS, num_virt_node=2).double().initial_state(context)
    q, e = x.new_zeros(len(x) + len(state.virtual), HEADS, 4), x.new_zeros(len(state.features), HEADS, 4)
    found = clamped._sorted_edges(q, q, e, state.edges)
    own = context.edge_index.size(1)
    assert found.kind[:own].tolist() == [-1] * own
    assert found.shared.tolist() == [*range(own, own + 5)]  # expander edges, and those to and from two virtual nodes


def test_a_graph_alone_gives_the_same_output_and_virtual_nodes_as_in_a_batch() -> None:
    attention = ExphormerAttention(DIM, HEADS, num_virt_node=2).double()
    x, context = full_batch()
    out, virtual = run(attention, x, context)
    expander = context.edge_sets["expander"][0]
    for graph in range(len(SIZES)):
        nodes, alone = graph_alone(x, context, graph)
        own = expander[:, context.batch[expander[0]] == graph] - context.ptr[graph]
        found = run(attention, nodes, replace(alone, edge_sets={"expander": (own, None)}))
        torch.testing.assert_close(found[0], out[context.batch == graph], **ROUNDING)
        torch.testing.assert_close(found[1], virtual[graph :: len(SIZES)], **ROUNDING)


def test_permuting_nodes_and_edges_permutes_the_output_and_keeps_the_virtual_nodes() -> None:
    attention = ExphormerAttention(DIM, HEADS, num_virt_node=2).double()
    x, context = full_batch()
    shuffled_x, shuffled, order = permuted(x, context)
    expander = order.argsort()[context.edge_sets["expander"][0]].flip(1)
    out, virtual = run(attention, x, context)
    found = run(attention, shuffled_x, replace(shuffled, edge_sets={"expander": (expander, None)}))
    torch.testing.assert_close(found, (out[order], virtual), **ROUNDING)


def test_gradients_reach_every_parameter_and_the_state_of_the_layer_before() -> None:
    attention, second = (ExphormerAttention(DIM, HEADS, num_virt_node=2).double() for _ in range(2))
    del second.initial_state
    x, context = full_batch()
    out, state = attention(x, context, attention.initial_state(context))
    second(out, context, state)[0].square().sum().backward()
    for parameter in (*attention.parameters(), *second.parameters()):
        assert parameter.grad is not None
        assert parameter.grad.any(-1).all()


@pytest.mark.parametrize("options", [{}, {"num_virt_node": 2}, {"use_exp_edges": False}, {"add_edge_index": False}])
@pytest.mark.parametrize("sizes", [[1], [4, 0, 3], [0], []], ids=["one node", "a graph without nodes", "none", "empty"])
def test_graphs_without_edges_give_finite_outputs_and_gradients(sizes: list[int], options: dict[str, Any]) -> None:
    attention = ExphormerAttention(DIM, HEADS, **options).double()
    x, context = make_batch(sizes, DIM, num_edges=0)
    x.requires_grad_()
    out, virtual = run(attention, x, GraphContext(context.batch, context.ptr))
    assert out.shape == x.shape
    assert virtual.shape == (options.get("num_virt_node", 0) * len(sizes), DIM)
    assert out.any() == bool(options.get("num_virt_node") and len(x))
    (out.sum() + virtual.sum()).backward()
    assert x.grad.isfinite().all()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in attention.parameters())


def test_bfloat16_autocast_is_close_to_float64() -> None:
    attention = ExphormerAttention(DIM, HEADS, num_virt_node=2).double()
    x, context = full_batch()
    expected = run(attention, x, context)[0]
    attention.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = run(attention, x.float(), context.with_edge_attr(context.edge_attr.float()))[0]
    torch.testing.assert_close(out.double(), expected, rtol=0.05, atol=0.05)


def test_dropout_acts_in_training_only() -> None:
    attention = ExphormerAttention(DIM, HEADS, 0.5).double()
    x, context = full_batch()
    assert not torch.equal(run(attention, x, context)[0], run(attention, x, context)[0])
    attention.eval()
    assert torch.equal(run(attention, x, context)[0], run(attention, x, context)[0])


def test_parameters_are_four_maps_a_layer_and_the_shared_vectors_once() -> None:
    first = ExphormerAttention(64, 4, num_virt_node=4)
    assert sum(parameter.numel() for parameter in first.initial_state.parameters()) == 64 + 768  # MalNet-Tiny
    del first.initial_state
    assert sum(parameter.numel() for parameter in first.parameters()) == 16384


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_virt_node": -1}, "prep.num_virt_node must be >= 0, got -1"),
        ({"add_edge_index": False, "use_exp_edges": False}, "no edges to attend along: set prep.add_edge_index"),
        ({"num_heads": 3}, "got dim 8 and 3 heads: use dim 6 or 9"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExphormerAttention(**{"dim": DIM, "num_heads": HEADS, **arguments})


def test_edges_without_features_are_refused() -> None:
    attention = ExphormerAttention(DIM, HEADS)
    _, context = make_batch([4], DIM)
    with pytest.raises(
        ValueError, match=r"edge features \(E, 8\), got no edge features: set dataset.edge_encoder True"
    ):
        attention.initial_state(context.with_edge_attr(None))
    with pytest.raises(ValueError, match=r"got shape \(8, 3\)"):
        attention.initial_state(context.with_edge_attr(torch.ones(8, 3)))


def test_an_edge_set_of_the_data_is_found_in_a_batch() -> None:
    graphs = [Data(x=torch.randn(3, DIM), expander_edge_index=torch.tensor([[0, 1], [1, 2]])) for _ in range(2)]
    state = ExphormerAttention(DIM, HEADS).initial_state(GraphContext.from_data(Batch.from_data_list(graphs)))
    assert state.edges.tolist() == [[0, 1, 3, 4], [1, 2, 4, 5], [0, 0, 0, 0]]


def test_without_a_state_it_is_called_as_other_attentions_are(caplog: pytest.LogCaptureFixture) -> None:
    attention = ExphormerAttention(DIM, HEADS, num_virt_node=2).double()
    x, context = full_batch()
    torch.testing.assert_close(attention(x, context), run(attention, x, context)[0], rtol=0, atol=0)
    out = attention(x, context.batch)  # along the edges to virtual nodes
    assert out.shape == x.shape
    assert (out != 0).all()
    assert not caplog.messages


def test_with_nothing_to_attend_along_the_zeros_are_explained(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(5, 64)
    out = ExphormerAttention(64, 4)(x, torch.tensor([0, 0, 0, 1, 1]))
    assert torch.equal(out, torch.zeros_like(x))
    assert "no edge to attend along" in caplog.text
    assert ExphormerAttention(64, 4)(x[:0]).shape == (0, 64)
    assert len(caplog.messages) == 1


def test_a_later_layer_of_a_stack_names_the_state_that_it_needs() -> None:
    attention = ExphormerAttention(DIM, HEADS).double()
    del attention.initial_state
    with pytest.raises(ValueError, match=r"is a later layer of a stack.*attention\(x, context, state"):
        attention(*full_batch())
