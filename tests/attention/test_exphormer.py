"""Exphormer against the formula and the record, and message passing along expander edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.exphormer import ExpanderMessages, ExphormerAttention, ExphormerState
from graphgps_kmip.encoding.feature_encoders import map_columns
from graphgps_kmip.mpnn import GINE
from graphgps_kmip.mpnn.gat import GAT
from graphgps_kmip.mpnn.gatedgcn import GatedGCN
from graphgps_kmip.mpnn.gcn import GCN
from graphgps_kmip.ops import clamped_attention as clamped
from graphgps_kmip.ops.clamped_attention import clamped_attention
from graphgps_kmip.ops.native import unavailable_reason
from graphgps_kmip.testing.laws import make_batch
from tests.recorded import check, load

DIM, HEADS = 8, 2
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}
SIZES = [7, 1, 12, 5]


def test_every_edge_has_the_features_of_its_kind() -> None:
    x, context = make_batch([3, 2], DIM)
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
    out, state = attention(x, context, start(context))
    torch.testing.assert_close(torch.cat([out, state.virtual]), expected, **ROUNDING)


@pytest.mark.skipif(unavailable_reason(clamped.KERNEL) is not None, reason="no C compiler")
def test_the_c_loop_walks_the_edges_of_a_layer() -> None:
    x, context = make_batch(SIZES, DIM)
    state = ExphormerAttention(DIM, HEADS, num_virt_node=2).double().initial_state(context)
    q, e = x.new_zeros(len(x) + len(state.virtual), HEADS, 4), x.new_zeros(len(state.features), HEADS, 4)
    walked, num_edges = clamped._sorted_edges(q, q, e, state.edges), context.edge_index.size(1)
    assert walked.kind[:num_edges].tolist() == [-1] * num_edges
    assert walked.shared.tolist() == [*range(num_edges, num_edges + 5)]  # expander, to and from two virtual nodes


def test_gradients_reach_every_parameter_and_the_state_of_the_layer_before() -> None:
    attention, second = (ExphormerAttention(DIM, HEADS, num_virt_node=2).double() for _ in range(2))
    del second.initial_state
    x, context = make_batch(SIZES, DIM)
    out, state = attention(x, context, attention.initial_state(context))
    second(out, context, state)[0].square().sum().backward()
    for parameter in (*attention.parameters(), *second.parameters()):
        assert parameter.grad is not None
        assert parameter.grad.any(-1).all()


def test_edges_without_features_are_refused() -> None:
    attention = ExphormerAttention(DIM, HEADS)
    _, context = make_batch([4], DIM)
    with pytest.raises(
        ValueError, match=r"edge features \(E, 8\), got no edge features: set dataset.edge_encoder True"
    ):
        attention.initial_state(context.with_edge_attr(None))
    with pytest.raises(ValueError, match=r"got shape \(8, 3\)"):
        attention.initial_state(context.with_edge_attr(torch.ones(8, 3)))


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
        attention(*make_batch(SIZES, DIM))


@pytest.mark.parametrize("name", ["virt0_nobias_b3", "virt2_bias_b3", "virt2_nobias_b1", "virt2_nobias_b3"])
def test_output_and_gradients_match_the_recorded_attention(name: str) -> None:
    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        sets = [kind for kind in ("expander", "virt") if f"{kind}_edge_index" in inputs]
        edge_index = torch.cat([inputs[f"{kind}_edge_index"] for kind in sets], 1)
        features = torch.cat([inputs[f"{kind}_edge_attr"] for kind in sets])
        edges = torch.cat([edge_index, torch.arange(len(features))[None]])
        state = ExphormerState(edges, features, inputs.get("virt_h", inputs["x"][:0]))
        h, state = attention(inputs["x"], inputs["batch"], state)
        return {"h": h, "virt_h": state.virtual}

    def rename(name: str) -> str:
        layer, parameter = name.split(".")
        return f"{ {'Q': 'query', 'K': 'key', 'V': 'value', 'E': 'edge'}[layer] }.{parameter}"

    attention = ExphormerAttention(DIM, HEADS, use_bias="_bias" in name).double()
    del attention.initial_state  # a later layer
    check(attention, forward, load(f"B_layers/exph_attention_{name}"), rename)


BATCH_DIM = 16  # of make_batch
CONVS: dict[str, Callable[[], nn.Module]] = {
    "GCN": lambda: GCN(BATCH_DIM),
    "GINE": lambda: GINE(BATCH_DIM),
    "GAT": lambda: GAT(BATCH_DIM, heads=2),
    "GatedGCN": lambda: GatedGCN(BATCH_DIM, residual=False),
}


def messages(kind: str, **options: bool) -> ExpanderMessages:
    torch.manual_seed(3)
    return ExpanderMessages(CONVS[kind](), BATCH_DIM, **options).double().eval()


def call(branch: ExpanderMessages, x: Tensor, context: GraphContext) -> Tensor:
    return branch(x, context, branch.initial_state(context))[0]


def join_edges(branch: ExpanderMessages, context: GraphContext) -> tuple[Tensor, Tensor]:
    """Return the edges and features that a branch should read: the graph's, then the expander's with one vector."""
    edges = context.edge_sets["expander"][0]
    vector = branch.initial_state.expander.weight.expand(edges.size(1), -1)
    return torch.cat([context.edge_index, edges], 1), torch.cat([context.edge_attr, vector])


@pytest.mark.parametrize("kind", CONVS)
def test_it_is_the_module_on_both_kinds_of_edges(kind: str) -> None:
    branch, (x, context) = messages(kind), make_batch(SIZES)
    torch.testing.assert_close(call(branch, x, context), branch.conv(x, *join_edges(branch, context))[0])
    alone = messages(kind, add_edge_index=False)
    edges = join_edges(alone, context)
    expected = alone.conv(x, edges[0][:, -len(x) :], edges[1][-len(x) :])[0]
    torch.testing.assert_close(call(alone, x, context), expected)
    graph_only = messages(kind, use_exp_edges=False)
    expected = graph_only.conv(x, context.edge_index, context.edge_attr)[0]
    torch.testing.assert_close(call(graph_only, x, context), expected)


def test_the_next_branch_reads_the_new_edge_features() -> None:
    branches, (x, context) = [messages("GatedGCN") for _ in range(2)], make_batch(SIZES)
    edge_index, edge_attr = join_edges(branches[0], context)
    state, out, expected = branches[0].initial_state(context), x, x
    for branch in branches:
        out, state = branch(out, context, state)
        expected, edge_attr = branch.conv(expected, edge_index, edge_attr)
    torch.testing.assert_close(out, expected)
    by_target = edge_index[1].argsort(stable=True)  # the order of the state's edges
    torch.testing.assert_close(state.features, edge_attr[by_target])


def test_a_gate_gets_the_encoding_of_nodes() -> None:
    torch.manual_seed(0)
    conv = GatedGCN(BATCH_DIM, residual=False, equivstable_pe=True)
    branch, (x, context) = ExpanderMessages(conv, BATCH_DIM).double().eval(), make_batch(SIZES)
    encoding = torch.randn_like(x)
    context = replace(context, encoding=encoding)
    expected = conv(x, *join_edges(branch, context), encoding)[0]
    torch.testing.assert_close(call(branch, x, context), expected)


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("options", [{"num_virt_node": 2}, {"use_exp_edges": False}])
def test_features_of_a_linear_map_of_few_columns_are_not_mapped_again(options: dict[str, int], use_bias: bool) -> None:
    x, context = make_batch(SIZES, DIM)
    encoder, columns = nn.Linear(1, DIM).double(), torch.randn(context.edge_index.size(1), 1).double()
    attention, results = ExphormerAttention(DIM, HEADS, use_bias=use_bias, **options).double(), []
    for encoded in (map_columns(encoder, columns), encoder(columns)):
        state = attention.initial_state(context.with_edge_attr(encoded))
        out = attention(x, context, state)[0]
        parameters = (*encoder.parameters(), attention.edge.weight, *attention.initial_state.parameters())
        grads = torch.autograd.grad((out * x).sum(), parameters, allow_unused=True)
        results.append((out, state.map_rows(x.dtype), *(grad for grad in grads if grad is not None)))
        assert (state.mixture is None) == (not hasattr(encoded, "linear_columns"))
    torch.testing.assert_close(*results, **ROUNDING)
    normed = context.with_edge_attr(map_columns(encoder, columns) * 2)  # a batch norm of edges, say
    assert attention.initial_state(normed).mixture is None
