"""The laws of attention, in every form of SAN's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention import san as unlinked
from graphgps_kmip.attention.san import SANAttention
from graphgps_kmip.testing.laws import attend, graph_alone, permuted
from tests.attention.san_cases import DIM, HEADS, ROUNDING, SIZES, batch, every_form, make


@every_form
def test_a_graph_alone_equals_the_graph_in_a_batch(options: dict[str, Any]) -> None:
    attention, (x, context) = make(options), batch()
    alone = []
    for graph in range(len(SIZES)):
        nodes, one = graph_alone(x, context, graph)
        edges = context.edge_sets["expander"][0]
        inside = edges[:, context.batch[edges[0]] == graph] - context.ptr[graph]
        alone.append(attend(attention, nodes, replace(one, edge_sets={"expander": (inside, None)})))
    torch.testing.assert_close(torch.cat(alone), attend(attention, x, context), **ROUNDING)


@every_form
def test_permuted_nodes_and_edges_permute_the_output(options: dict[str, Any]) -> None:
    attention, (x, context) = make(options), batch()
    shuffled_x, shuffled, order = permuted(x, context)
    edges = order.argsort()[context.edge_sets["expander"][0]]
    shuffled = replace(shuffled, edge_sets={"expander": (edges, None)})
    torch.testing.assert_close(
        attend(attention, shuffled_x, shuffled), attend(attention, x, context)[order], **ROUNDING
    )


@every_form
@pytest.mark.parametrize(
    ("sizes", "num_edges"),
    [([1], 0), ([1, 1], 2), ([6, 3], 0), ([4, 0, 5], 2), ([0], 0), ([], 0)],
    ids=["one node", "one-node graphs", "no edges", "empty graph within", "no nodes", "no graphs"],
)
def test_graphs_of_any_shape_give_finite_outputs_and_gradients(
    options: dict[str, Any], sizes: list[int], num_edges: int
) -> None:
    attention, (x, context) = make(options), batch(sizes, num_edges)
    out = attend(attention, x.requires_grad_(), context)
    assert out.shape == x.shape
    assert out.isfinite().all()
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
        out = attend(attention, x, context)
        out.square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in attention.parameters())


@every_form
def test_gradients_equal_finite_differences(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(unlinked.LARGEST, "cpu", 1)
    attention, (x, context) = make(options), batch([3, 1, 4], 1)

    def of(x: Tensor, edge_attr: Tensor) -> Tensor:
        return attend(attention, x, context.with_edge_attr(edge_attr))

    assert torch.autograd.gradcheck(of, (x.requires_grad_(), context.edge_attr.requires_grad_()))


@every_form
def test_eval_repeats_itself_and_the_state_dict_carries_the_function(options: dict[str, Any]) -> None:
    attention, other, (x, context) = make(options), SANAttention(DIM, HEADS, **options).double().eval(), batch()
    before = [each.clone() for each in (x, context.edge_attr, context.edge_index)]
    expected = attend(attention, x, context)
    assert torch.equal(attend(attention, x, context), expected)
    assert not torch.equal(attend(other, x, context), expected)
    other.load_state_dict(attention.state_dict())
    assert torch.equal(attend(other, x, context), expected)
    assert all(map(torch.equal, before, (x, context.edge_attr, context.edge_index)))


@every_form
def test_narrow_numbers_stay_close_to_wide_ones(options: dict[str, Any]) -> None:
    attention, (x, context) = make(options), batch()
    expected = attend(attention, x, context)
    narrow = context.with_edge_attr(context.edge_attr.float())
    out = attend(attention.float(), x.float(), narrow)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend(attention, x.float(), narrow)
    out.float().square().sum().backward()
    torch.testing.assert_close(out.double(), expected, rtol=0.1, atol=0.05)
    assert all(p.grad is None or p.grad.isfinite().all() for p in attention.parameters())


def test_a_plain_batch_vector_means_no_edges() -> None:
    attention, (x, context) = make({"gamma": 0.3}), batch()
    expected = attend(attention, x, GraphContext(context.batch, context.ptr))
    torch.testing.assert_close(attend(attention, x, context.batch), expected, rtol=0, atol=0)
