"""Message passing along expander edges: against the modules themselves on one list of edges, and the laws."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.exphormer import ExpanderMessages
from graphgps_kmip.model import GPSLayer
from graphgps_kmip.model.gps import initial_states
from graphgps_kmip.mpnn import GAT, GCN, GINE, GatedGCN
from graphgps_kmip.testing.laws import graph_alone, make_batch, permuted

DIM = 16  # of make_batch
CONVS: dict[str, Callable[[], nn.Module]] = {
    "GCN": lambda: GCN(DIM),
    "GINE": lambda: GINE(DIM),
    "GAT": lambda: GAT(DIM, heads=2),
    "GatedGCN": lambda: GatedGCN(DIM, residual=False),
}
SIZES = [5, 1, 7]


def messages(kind: str, **options: bool) -> ExpanderMessages:
    torch.manual_seed(3)
    return ExpanderMessages(CONVS[kind](), DIM, **options).double().eval()


def with_expander(context: GraphContext) -> GraphContext:
    """Add a ring in each graph as its expander edges: nodes in the order of their numbers."""
    after = torch.arange(len(context.batch)) + 1
    after = torch.where(after == context.ptr[1:][context.batch], context.ptr[context.batch], after)
    context.edge_sets["expander"] = torch.stack([torch.arange(len(context.batch)), after]), None
    return context


def called(branch: ExpanderMessages, x: Tensor, context: GraphContext) -> Tensor:
    return branch(x, context, branch.initial_state(context))[0]


def joined(branch: ExpanderMessages, context: GraphContext) -> tuple[Tensor, Tensor]:
    """Return the edges and features that a branch should read: the graph's, then the expander's with one vector."""
    edges = context.edge_sets["expander"][0]
    vector = branch.initial_state.expander.weight.expand(edges.size(1), -1)
    return torch.cat([context.edge_index, edges], 1), torch.cat([context.edge_attr, vector])


@pytest.mark.parametrize("kind", CONVS)
def test_it_is_the_module_on_both_kinds_of_edges(kind: str) -> None:
    branch, (x, context) = messages(kind), make_batch(SIZES)
    context = with_expander(context)
    torch.testing.assert_close(called(branch, x, context), branch.conv(x, *joined(branch, context))[0])
    alone = messages(kind, add_edge_index=False)
    edges = joined(alone, context)
    expected = alone.conv(x, edges[0][:, -len(x) :], edges[1][-len(x) :])[0]
    torch.testing.assert_close(called(alone, x, context), expected)
    graph_only = messages(kind, use_exp_edges=False)
    expected = graph_only.conv(x, context.edge_index, context.edge_attr)[0]
    torch.testing.assert_close(called(graph_only, x, context), expected)


def test_two_gps_layers_equal_those_with_a_gated_gcn_on_one_list_of_edges() -> None:
    branches, (x, context) = [messages("GatedGCN") for _ in range(2)], make_batch(SIZES)
    context = with_expander(context)
    layers = [GPSLayer(DIM, None, branch).double().train() for branch in branches]
    wanted = [_beside(layer) for layer in layers]
    states = initial_states(layers[0].attention, context)
    edge_index, edge_attr = joined(branches[0], context)
    whole, found, expected = GraphContext(context.batch, context.ptr, edge_index, edge_attr), x, x
    for layer, other in zip(layers, wanted, strict=True):
        found, edges, states = layer(found, context, states)
        expected, edge_attr, _ = other(expected, whole)
        whole = whole.with_edge_attr(edge_attr)
        assert edges is context.edge_attr
    torch.testing.assert_close(found, expected)
    by_target = edge_index[1].argsort(stable=True)  # the order of the state's edges
    torch.testing.assert_close(states[0].features, whole.edge_attr[by_target])


def _beside(layer: GPSLayer) -> GPSLayer:
    """Return a layer with the same weights whose GatedGCN stands where it usually does, with its own residual."""
    other = GPSLayer(DIM, GatedGCN(DIM), None).double()
    names = {"attention.0.conv.": "local.0.", "attention_norm.": "local_norm."}
    state = {}
    for name, value in layer.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        state[name] = value.clone()
    other.load_state_dict({name: value for name, value in state.items() if "initial_state" not in name})
    return other


@pytest.mark.parametrize("kind", CONVS)
def test_a_graph_alone_equals_the_graph_in_a_batch(kind: str) -> None:
    branch, (x, context) = messages(kind), make_batch(SIZES)
    together = called(branch, x, with_expander(context))
    for graph in range(len(SIZES)):
        nodes, alone = graph_alone(x, context, graph)
        torch.testing.assert_close(called(branch, nodes, with_expander(alone)), together[context.batch == graph])


@pytest.mark.parametrize("kind", CONVS)
def test_permuted_nodes_and_edges_permute_the_output(kind: str) -> None:
    branch, (x, context) = messages(kind), make_batch(SIZES)
    expected = called(branch, x, with_expander(context))
    moved, shuffled, order = permuted(x, context)
    edges = order.argsort()[context.edge_sets["expander"][0]]
    shuffled.edge_sets["expander"] = edges[:, torch.randperm(edges.size(1))], None
    torch.testing.assert_close(called(branch, moved, shuffled), expected[order])


@pytest.mark.parametrize("kind", CONVS)
def test_without_any_edge_nodes_stay_among_themselves(kind: str) -> None:
    branch, (x, context) = messages(kind), make_batch([1, 2], num_edges=0)
    out = called(branch, x, context)
    assert out.shape == x.shape
    assert out.isfinite().all()


def test_gradients_are_right_and_inputs_stay_as_they_are() -> None:
    branch, (x, context) = messages("GatedGCN").train(), make_batch([3, 1])
    context = with_expander(context)
    x, edge_attr = x.requires_grad_(), context.edge_attr.requires_grad_()
    before = x.detach().clone(), edge_attr.detach().clone()

    def of(x: Tensor, edge_attr: Tensor) -> tuple[Tensor, Tensor]:
        changed = context.with_edge_attr(edge_attr)
        out, state = branch(x, changed, branch.initial_state(changed))
        return out, state.features

    assert torch.autograd.gradcheck(of, (x, edge_attr))
    torch.testing.assert_close((x.detach(), edge_attr.detach()), before, rtol=0, atol=0)
    sum(one.sum() for one in of(x, edge_attr)).backward()
    assert branch.initial_state.expander.weight.grad.abs().sum() > 0


def test_dropout_drops_what_is_added_to_edges() -> None:
    torch.manual_seed(0)
    branch, (x, context) = ExpanderMessages(GatedGCN(DIM, residual=False), DIM, 0.5).double(), make_batch([40])
    context = with_expander(context)
    start = branch.initial_state(context)
    old = start.features[start.edges[2]]
    branch.conv.eval()  # no other random numbers, no batch statistics
    new = branch(x, context, start)[1].features
    share = (new == old).double().mean()
    kept = branch.eval()(x, context, start)[1].features
    assert 0.45 < share - (kept == old).double().mean() * 0.5 < 0.55
    changed = (new != old) & (kept != old)
    torch.testing.assert_close((new - old)[changed], 2 * (kept - old)[changed])


def test_a_gate_gets_the_encoding_of_nodes() -> None:
    torch.manual_seed(0)
    conv = GatedGCN(DIM, residual=False, equivstable_pe=True)
    branch, (x, context) = ExpanderMessages(conv, DIM).double().eval(), make_batch(SIZES)
    context = with_expander(context)
    encoding = torch.randn_like(x)
    context = GraphContext(
        context.batch, context.ptr, context.edge_index, context.edge_attr, context.edge_sets, encoding=encoding
    )
    expected = conv(x, *joined(branch, context), encoding)[0]
    torch.testing.assert_close(called(branch, x, context), expected)


def test_a_branch_without_edges_is_refused() -> None:
    with pytest.raises(ValueError, match="set prep.add_edge_index or prep.use_exp_edges True"):
        ExpanderMessages(GCN(DIM), DIM, add_edge_index=False, use_exp_edges=False)
