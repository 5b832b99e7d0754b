"""Biases and factors of pairs for all layers at once: those of each layer by itself, with their gradients."""

from __future__ import annotations

import copy

import pytest
import torch

from graphgps_kmip.attention import GraphContext, SimplifiedL2Attention, simplified_l2
from graphgps_kmip.attention.simplified_l2 import SharedPairs
from graphgps_kmip.errors import InputError

PTR = torch.tensor([0, 5, 5, 6, 13])


def layers(**options: bool) -> list[SimplifiedL2Attention]:
    torch.manual_seed(0)
    return [SimplifiedL2Attention(8, 2, dim_pair=3, **options).double() for _ in range(3)]


def context() -> GraphContext:
    pairs = torch.randn(int(PTR.diff().square().sum()), 3, dtype=torch.float64, requires_grad=True)
    return GraphContext(torch.arange(4).repeat_interleave(PTR.diff()), PTR, pair_attr=pairs)


@pytest.mark.parametrize("urpe", [True, False])
def test_outputs_and_gradients_are_those_of_each_layer_by_itself(urpe: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simplified_l2, "PAIRS_AT_A_TIME", 7)
    stack, graphs, found = layers(urpe=urpe), context(), []
    x = torch.randn(13, 8, dtype=torch.float64)
    leaves = [graphs.pair_attr, *(parameter for layer in stack for parameter in layer.parameters())]
    for shared in (True, False):
        h, state = x, SharedPairs(stack)(graphs) if shared else None
        for layer in stack:
            h, state = layer(h, graphs, state) if shared else (layer(h, graphs), None)
        assert state in ((), None)
        found.append((h, *torch.autograd.grad(h.square().sum(), leaves)))
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-11)


def test_derivatives_by_parts_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simplified_l2, "PAIRS_AT_A_TIME", 2)
    stack, graphs = layers(), context()

    def numbers(attr: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return simplified_l2._PairMaps.apply(attr, weight, bias, [2, 2])

    given = graphs.pair_attr[:5].detach().requires_grad_(), stack[0].pair.weight, stack[0].pair.bias
    assert torch.autograd.gradcheck(numbers, given)


def test_a_copy_of_a_stack_reads_its_own_weights() -> None:
    stack, graphs = torch.nn.ModuleList(layers()), context()
    stack[0].initial_state = SharedPairs(list(stack))
    other = copy.deepcopy(stack)
    with torch.no_grad():
        stack[2].pair.weight.zero_()
    assert stack.state_dict().keys() == other.state_dict().keys()
    theta = [one[0].initial_state(graphs)[2][0] for one in (stack, other)]
    assert theta[0].std(dim=1).max() < 1e-12
    assert theta[1].std(dim=1).min() > 0.01


def test_attentions_with_a_window_are_refused() -> None:
    with pytest.raises(InputError, match="window"):
        SharedPairs([SimplifiedL2Attention(8, 2, window=1)])
