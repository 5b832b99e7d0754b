"""The reference forms in the benchmark of layers compute what our attentions compute."""

from __future__ import annotations

import pytest
import torch
from run.bench import layer

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.model.gps import initial_states
from graphgps_kmip.registry import entries
from tests.reference.attention_formulas import PREFIX, REFERENCES

PTR = torch.tensor([0, 26, 27, 32, 60])


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_form_gives_the_same_output_and_gradient(name: str) -> None:
    torch.manual_seed(0)
    ours = entries("attention")[name].component(8, 2).double()
    x, edges = torch.randn(60, 8).double(), torch.randint(0, 26, (2, 90))
    context = GraphContext(
        torch.repeat_interleave(PTR.diff()),
        PTR,
        edges,
        torch.randn(90, 8).double(),
        edge_sets={"expander": (edges.flip(1), None)},
    )
    results = []
    for attention in (ours, REFERENCES[name](ours)):
        leaf = x.clone().requires_grad_()
        (state,) = initial_states([attention], context)
        out = attention(leaf, context) if state is None else attention(leaf, context, state)[0]
        results.append((out, *torch.autograd.grad(out.square().sum(), leaf)))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


def test_each_reference_form_takes_part_beside_its_attention() -> None:
    assert {PREFIX + name for name in REFERENCES} < set(layer.names())
    assert set(REFERENCES) < set(entries("attention"))
