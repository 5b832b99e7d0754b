"""Sinusoidal encoding: recorded values, loops over channels and bases, and one operator with its linear layer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from graphgps_kmip.encoding.sinusoidal_encoding import sinusoidal, sinusoidal_linear_of_chunk, sinusoidal_width
from tests.recorded import TOLERANCE, load

SHAPES = [(3, True), (3, False), (1, True), (0, True), (0, False)]


def inputs(rows: int, num_bases: int, raw: bool, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (rows, 4), (5, sinusoidal_width(4, num_bases, raw)), (5,)
    x, weight, bias = (torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
    return x.to(dtype), weight.to(dtype), bias.to(dtype)


def plain(x: Tensor, weight: Tensor, bias: Tensor, num_bases: int, raw: bool = True) -> Tensor:
    return torch.nn.functional.linear(sinusoidal(x, num_bases, raw).to(weight.dtype), weight, bias)


def test_values_are_those_of_the_public_code_in_float64_and_within_its_rounding_in_float32() -> None:
    record = load("F_encodings/spe_S15")
    found = sinusoidal(record["in/x"], 15)
    torch.testing.assert_close(found, record["eval/out/y"], rtol=TOLERANCE, atol=TOLERANCE)
    single = sinusoidal(record["in/x"].float(), 15)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, record["f32/eval/out/y"], rtol=0, atol=2e-3)
    assert float((single - found).abs().max()) > 1e-4  # what float64 is for


@pytest.mark.parametrize(("num_bases", "raw"), SHAPES)
def test_columns_are_the_values_and_then_sine_and_cosine_of_each_base_channel_by_channel(
    num_bases: int, raw: bool
) -> None:
    x = inputs(7, num_bases, raw)[0]
    for row, found in zip(x.tolist(), sinusoidal(x, num_bases, raw).tolist(), strict=True):
        expected = list(row) if raw or not num_bases else []
        for value in row:
            for s in range(num_bases):
                expected += [math.sin(2**s * math.pi * value), math.cos(2**s * math.pi * value)]
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert len(found) == sinusoidal_width(4, num_bases, raw)


@pytest.mark.parametrize("rows", [0, 1, 25])
@pytest.mark.parametrize(("num_bases", "raw"), SHAPES)
def test_the_operator_equals_encoding_and_linear_layer_with_all_gradients(rows: int, num_bases: int, raw: bool) -> None:
    x, weight, bias = inputs(rows, num_bases, raw)
    cotangent = torch.randn(rows, 5, dtype=torch.float64)
    results = []
    for function in (sinusoidal_linear_of_chunk, plain):
        given = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
        y = function(*given, num_bases, raw)
        (y * cotangent).sum().backward()
        results.append([y.detach(), *(tensor.grad for tensor in given)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("num_bases", "raw"), [(2, True), (2, False), (0, True)])
def test_first_and_second_derivatives_are_right(num_bases: int, raw: bool) -> None:
    given = [tensor.requires_grad_() for tensor in inputs(5, num_bases, raw)]

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return sinusoidal_linear_of_chunk(x, weight, bias, num_bases, raw)

    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)


def test_sines_are_computed_in_the_type_of_the_values_and_cast_after() -> None:
    x, weight, bias = inputs(9, 15, True)
    wide = sinusoidal(x, 15).float()
    expected = torch.nn.functional.linear(wide, weight.float(), bias.float())
    found = sinusoidal_linear_of_chunk(x, weight.float(), bias.float(), 15)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    far = sinusoidal_linear_of_chunk(x.float(), weight.float(), bias.float(), 15)
    assert float((far - expected).abs().max()) > 1e-4


def test_autocast_multiplies_in_its_own_type_and_gradients_have_that_of_the_parameters() -> None:
    x, weight, bias = inputs(9, 3, True, torch.float32)
    weight, bias = weight.requires_grad_(), bias.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = sinusoidal_linear_of_chunk(x, weight, bias, 3)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert weight.grad.dtype == bias.grad.dtype == torch.float32
    exact = torch.autograd.grad(plain(x, weight, bias, 3, True).sum(), weight)[0]
    torch.testing.assert_close(weight.grad, exact, rtol=0.05, atol=0.05)
    torch.testing.assert_close(y.float(), plain(x, weight, bias, 3, True), rtol=0.05, atol=0.1)
