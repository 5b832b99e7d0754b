"""Convolutions that sum over lists of neighbours, and self loops: torch_geometric's results and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import APPNP, GATConv, GCNConv, GINConv, MessagePassing, SAGEConv

from graphgps_kmip.mpnn import message_passing
from graphgps_kmip.mpnn.message_passing import (
    PlainConv,
    SummedAPPNP,
    SummedGAT,
    SummedGCN,
    SummedGIN,
    SummedSAGE,
    replace_self_loops,
)

BASES = [
    GCNConv(4, 3),
    APPNP(3, 0.2),
    GATConv(4, 2, 3),
    GINConv(nn.Linear(4, 3)),
    SAGEConv(4, 3),
]  # specialised before the summed ones
EDGES = {
    "some": torch.tensor([[0, 1, 1, 2, 3, 3, 3], [1, 1, 0, 3, 3, 2, 2]]),  # loops, a repeated edge; node 4 has none
    "none": torch.zeros(2, 0, dtype=torch.int64),
}
PAIRS: dict[str, Callable[[], tuple[MessagePassing, MessagePassing]]] = {
    "GCN": lambda: (SummedGCN(4, 3, add_self_loops=False), GCNConv(4, 3, add_self_loops=False)),
    "APPNP": lambda: (SummedAPPNP(3, 0.2), APPNP(3, 0.2, add_self_loops=False)),
    "GAT": lambda: (SummedGAT(4, 2, 3, add_self_loops=False), GATConv(4, 2, 3, add_self_loops=False)),
    "GAT, edge features": lambda: (
        SummedGAT(4, 2, 3, edge_dim=5, add_self_loops=False),
        GATConv(4, 2, 3, edge_dim=5, add_self_loops=False),
    ),
    "GAT, own loops": lambda: (SummedGAT(4, 2, 3), GATConv(4, 2, 3)),
    "GAT, own loops, edge features": lambda: (SummedGAT(4, 2, 3, edge_dim=5), GATConv(4, 2, 3, edge_dim=5)),
    "GIN": lambda: (SummedGIN(nn.Linear(4, 3)), GINConv(nn.Linear(4, 3))),
    "GraphSAGE": lambda: (SummedSAGE(4, 3), SAGEConv(4, 3)),
}


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("name", PAIRS)
def test_lists_give_the_results_and_gradients_of_torch_geometric(
    name: str, edges: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    summed, reference = (conv.double() for conv in PAIRS[name]())
    reference.load_state_dict(summed.state_dict())
    x, edge_index = torch.randn(5, 4, dtype=torch.float64), EDGES[edges]
    arguments = [x, edge_index] + [torch.randn(edge_index.size(1), 5).double()] * ("edge features" in name)
    monkeypatch.setattr(message_passing, "lists_pay", lambda *_: True)
    monkeypatch.setattr(MessagePassing, "propagate", None)  # of a convolution that has not run yet
    for conv in (type(summed), type(summed).__base__):
        monkeypatch.setattr(conv, "propagate", None, raising=False)  # the lists must not need it
    results = _passes(summed, *arguments)
    monkeypatch.undo()
    for actual, expected in zip(results, _passes(reference, *arguments), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)


def _passes(conv: nn.Module, x: Tensor, *edges: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = conv(x, *edges)
    gradients = torch.autograd.grad(out.sin().sum(), [x, *conv.parameters()], materialize_grads=True, allow_unused=True)
    return [out.detach(), *gradients]


def test_weights_with_gradients_and_explanations_take_the_way_of_torch_geometric(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_passing, "MIN_NUMBERS", 0)
    monkeypatch.setattr(message_passing, "MIN_CHANNELS", 0)
    edge_index, weight = EDGES["some"], torch.rand(7, requires_grad=True)
    x = torch.randn(5, 4)
    SummedGCN(4, 3)(x, edge_index, weight).sum().backward()
    assert weight.grad.abs().sum() > 0
    conv = SummedGIN(nn.Linear(4, 3))
    conv.explain, conv._edge_mask = True, torch.full((7,), -torch.inf)  # of sigmoids: no edge counts
    torch.testing.assert_close(conv(x, edge_index), conv.nn(x))


@pytest.mark.parametrize("name", PAIRS)
def test_explanations_find_the_general_form_of_a_layer_although_its_base_class_was_in_use_first(name: str) -> None:
    assert type(PAIRS[name]()[0])._orig_propagate is MessagePassing.propagate


LOOPS = torch.tensor([[0, 1, 1, 2, 3, 3], [1, 1, 0, 3, 3, 2]])  # two are loops; node 4 has no edge


@pytest.mark.parametrize("edge_index", [LOOPS, LOOPS[:, [0, 2, 3, 5]]], ids=["with loops", "without"])
def test_convolutions_on_edges_with_own_loops_equal_those_that_add_them(edge_index: torch.Tensor) -> None:
    x, edge_attr = torch.randn(5, 4), torch.randn(edge_index.size(1), 3)
    for conv, attr in ((GATConv(4, 2, 2, edge_dim=3), edge_attr), (GCNConv(4, 4), None)):
        expected = conv(x, edge_index, attr)
        if attr is None:
            torch.testing.assert_close(PlainConv(conv)(x, edge_index, None)[0], expected)
        conv.add_self_loops = False
        edges, features = replace_self_loops(edge_index, attr, len(x))
        torch.testing.assert_close(conv(x, edges, features), expected)
        assert edges.size(1) == 4 + 5
