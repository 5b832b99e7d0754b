"""Hyena operator against a loop over all earlier nodes, and that it is causal."""

from __future__ import annotations

import math

import torch

from graphgps_kmip.attention import GraphContext, HyenaAttention
from graphgps_kmip.attention.geco import causal_convolution

SIZES = [5, 1, 0, 7, 5]
PTR = torch.tensor([0, *SIZES]).cumsum(0)


def context() -> GraphContext:
    return GraphContext(torch.repeat_interleave(torch.tensor(SIZES)), PTR)


def test_a_causal_convolution_equals_the_sum_over_earlier_places() -> None:
    torch.manual_seed(0)
    x = torch.randn(sum(SIZES), 3, dtype=torch.float64)
    filters = {size: torch.randn(size, 3, dtype=torch.float64) for size in (1, 5, 7)}
    expected = torch.zeros_like(x)
    for start, size in zip(PTR.tolist(), SIZES, strict=False):
        for t in range(size):
            for i in range(t + 1):
                expected[start + t] += x[start + i] * filters[size][t - i]
    torch.testing.assert_close(causal_convolution(x, torch.cat(list(filters.values())), PTR, tuple(filters)), expected)


def test_the_operator_equals_its_formula() -> None:
    torch.manual_seed(0)
    layer = HyenaAttention(4, 1).double().eval()
    x = torch.randn(7, 4, dtype=torch.float64)
    short = layer.project(x)
    mixed = layer.short_bias + torch.stack(
        [sum(layer.short[i] * short[t - i] for i in range(3) if t >= i) for t in range(7)]
    )
    gate, inner, value = mixed.split(4, 1)
    value, taps = value * inner, layer.filter((7,))
    rate = -math.log(1e-2) * torch.linspace(1 / 0.3, 1 / 1.5, 4)
    decay = torch.stack([torch.exp(-rate * t / 6) for t in range(7)])
    long = torch.stack([sum((taps * decay)[t - i] * value[i] for i in range(t + 1)) for t in range(7)])
    expected = layer.out(gate * (long + layer.skip * value))
    torch.testing.assert_close(layer(x), expected, atol=1e-6, rtol=1e-6)


def test_no_node_depends_on_a_later_one_or_on_another_graph() -> None:
    torch.manual_seed(0)
    layer = HyenaAttention(4, 1).double().eval()
    x = torch.randn(sum(SIZES), 4, dtype=torch.float64, requires_grad=True)
    for row in (3, 5, 9):
        (grad,) = torch.autograd.grad(layer(x, context())[row].sum(), x)
        reached = (grad.abs().sum(1) > 1e-9).nonzero().squeeze(1).tolist()  # below are roundings of transforms
        assert reached == list(range(int(PTR[context().batch[row]]), row + 1))
