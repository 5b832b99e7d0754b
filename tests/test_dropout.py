"""Dropout with 16 random bits for a number: rates, factors, gradients, and when nothing is drawn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from graphgps_kmip.ops.dropout import Dropout, dropout


@pytest.mark.parametrize("p", [0.01, 0.15, 0.5, 0.9])
def test_numbers_are_dropped_at_the_rate_independently_and_scaled_with_their_gradients(p: float) -> None:
    torch.manual_seed(0)
    x = torch.rand(250, 801, dtype=torch.float64).add_(1).requires_grad_()  # not a multiple of what is drawn at once
    out = dropout(x, p, True)
    kept, deviation = out != 0, (p * (1 - p) / x.numel()) ** 0.5
    torch.testing.assert_close(out, x * kept / (1 - p), rtol=1e-12, atol=0)
    assert kept.double().mean().item() == pytest.approx(1 - p, abs=4 * deviation)
    for step in (1, 2, 3, 4, 801):  # neighbours in a draw, and in a column
        first, second = kept.flatten()[:-step], kept.flatten()[step:]
        assert (first & second).double().mean().item() == pytest.approx((1 - p) ** 2, abs=8 * deviation)
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad, kept.double() / (1 - p), rtol=1e-12, atol=0)


def test_a_seed_repeats_the_draws_on_any_number_of_threads() -> None:
    before, results = torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(3)
        results.append(Dropout(0.3)(torch.ones(70_001)))
    torch.set_num_threads(before)
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_without_training_or_rate_it_is_the_input_and_at_rate_1_zeros() -> None:
    x = torch.randn(5, 3)
    torch.testing.assert_close(Dropout(0.5).eval()(x), x, rtol=0, atol=0)
    torch.testing.assert_close(Dropout(0.0)(x), x, rtol=0, atol=0)
    assert not Dropout(1.0)(x).any()
    assert isinstance(Dropout(0.5), nn.Dropout)  # who sets the rates of a model finds it
    assert dropout(torch.empty(0, 4), 0.5, True).shape == (0, 4)
