"""The limit that theorem 2 rests on and its toy fit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphgps_kmip.expressivity.toy_fit import (
    TARGETS,
    Task,
    Transformers,
    fit,
    hardmax_bound,
    hardmax_error,
    linear_error,
    topk_softmax,
)


def row(maxima: int, gap: float, rest: int = 6) -> torch.Tensor:
    """Some tied maxima, one value a gap below, and lower ones, in mixed order."""
    values = [1.0] * maxima + [1.0 - gap] + [-1.0 - 0.1 * place for place in range(rest - 1)]
    return torch.tensor(values, dtype=torch.float64)[torch.randperm(len(values))]


def test_topk_softmax_is_softmax_over_the_largest_entries() -> None:
    result = topk_softmax(torch.tensor([[0.0, 2.0, 1.0, -3.0]], dtype=torch.float64), 2)
    share = 1 / (1 + math.exp(-1))
    torch.testing.assert_close(result, torch.tensor([[0, share, 1 - share, 0]], dtype=torch.float64))


@pytest.mark.parametrize(("maxima", "k"), [(1, 1), (1, 4), (2, 2), (3, 5), (3, 99)])
def test_with_enough_keys_the_limit_is_hardmax(maxima: int, k: int) -> None:
    assert float(hardmax_error(row(maxima, 0.5), k, 80.0)) < 1e-15 * 4 * k


@pytest.mark.parametrize("gap", [0.25, 0.5, 1.0])
def test_the_error_falls_as_the_exponential_of_lambda_times_the_gap(gap: float) -> None:
    z = row(2, gap)
    first, second = (float(hardmax_error(z, 5, scale)) for scale in (24 / gap, 28 / gap))
    # between the scales, the exponent grows by 4; the values below the gap are far smaller
    assert math.log(first / second) == pytest.approx(4.0, abs=1e-3)


@pytest.mark.parametrize(("maxima", "k"), [(2, 1), (3, 2), (5, 1)])
def test_with_fewer_keys_than_maxima_the_even_share_is_never_reached(maxima: int, k: int) -> None:
    z = row(maxima, 0.5)
    for scale in (1.0, 1e3):
        expected = 2 * (1 - k / maxima)
        assert float(hardmax_error(z, k, scale)) == pytest.approx(expected)
        assert float(hardmax_bound(z, k, scale)) == pytest.approx(expected)


@given(
    st.lists(st.integers(-4, 4), min_size=1, max_size=12), st.integers(1, 14), st.floats(0.05, 30), st.floats(0.1, 2)
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_the_bound_holds(values: list[int], k: int, scale: float, unit: float) -> None:
    z = unit * torch.tensor(values, dtype=torch.float64)
    assert float(hardmax_error(z, k, scale)) <= float(hardmax_bound(z, k, scale)) + 1e-12


SMALL = Task(num_tokens=4, dim=2, batch=16, test_size=64)


def by_hand(model: Transformers, seed: int, x: torch.Tensor) -> torch.Tensor:
    weights, biases = ([part[seed] for part in parts] for parts in (model.weights, model.biases))
    qkv = (x @ weights[0] + biases[0]).chunk(3, dim=1)
    q, k, v = (part.unflatten(1, (model.heads, -1)) for part in qkv)  # (N, H, D)
    heads = []
    for head in range(model.heads):
        score = q[:, head] @ k[:, head].T / math.sqrt(q.size(2))
        lowest_kept = score.sort(dim=1, descending=True).values[:, [model.k - 1]]
        heads.append(score.masked_fill(score < lowest_kept, -torch.inf).softmax(1) @ v[:, head])
    x = x + torch.cat(heads, 1) @ weights[1] + biases[1]
    return x + torch.relu(x @ weights[2] + biases[2]) @ weights[3] + biases[3]


@pytest.mark.parametrize("width", [1, 4])
def test_a_block_is_attention_and_mlp_with_residuals(width: int) -> None:
    model = Transformers(3, 1, 2, width=width, seeds=(5, 6)).double()
    for bias in model.biases:
        torch.nn.init.normal_(bias)
    x = torch.randn(2, 1, 7, 3, dtype=torch.float64)
    out = model(x)
    for seed in (0, 1):
        torch.testing.assert_close(out[seed, 0], by_hand(model, seed, x[seed, 0]))


def test_a_fit_is_repeatable_one_error_a_seed_and_better_with_more_steps() -> None:
    few = fit("transformer", 1, 2, 2, (0, 1), SMALL)
    assert few == fit("transformer", 1, 2, 2, (0, 1), SMALL)
    assert few[0] != few[1]
    more = fit("transformer", 1, 2, 80, (0, 1), SMALL)
    assert max(more) < min(few)


def test_the_error_of_an_affine_map_is_between_those_of_perfection_and_a_constant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert 0 < linear_error("nearest", SMALL) <= 1
    monkeypatch.setitem(TARGETS, "affine", lambda x: 2 * x + 1)
    assert linear_error("affine", SMALL) == pytest.approx(0, abs=1e-5)
    monkeypatch.setitem(TARGETS, "square", lambda x: x.square().sum(-1, keepdim=True).expand_as(x) * math.pi)
    assert linear_error("square", SMALL) > 0.5
