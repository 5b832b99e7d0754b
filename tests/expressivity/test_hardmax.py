"""The limit that theorem 2 rests on, its rate, and where it fails."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphgps_kmip.expressivity.toy_fit import hardmax, hardmax_bound, hardmax_error, topk_softmax


def row(maxima: int, gap: float, rest: int = 6) -> torch.Tensor:
    """Some tied maxima, one value a gap below, and lower ones, in mixed order."""
    values = [1.0] * maxima + [1.0 - gap] + [-1.0 - 0.1 * place for place in range(rest - 1)]
    return torch.tensor(values, dtype=torch.float64)[torch.randperm(len(values))]


def test_topk_softmax_is_softmax_over_the_largest_entries() -> None:
    found = topk_softmax(torch.tensor([[0.0, 2.0, 1.0, -3.0]], dtype=torch.float64), 2)
    share = 1 / (1 + math.exp(-1))
    torch.testing.assert_close(found, torch.tensor([[0, share, 1 - share, 0]], dtype=torch.float64))


def test_topk_softmax_with_all_keys_is_softmax() -> None:
    z = torch.randn(3, 5, dtype=torch.float64)
    for k in (5, 9):
        torch.testing.assert_close(topk_softmax(z, k), z.softmax(-1))
    with pytest.raises(ValueError, match="k must be >= 1, got 0"):
        topk_softmax(z, 0)


def test_gradients_of_topk_softmax_reach_the_entries_that_are_kept_and_no_others() -> None:
    z = torch.tensor([3.0, 1.0, 2.0, 0.0], dtype=torch.float64, requires_grad=True)
    topk_softmax(z, 2)[0].backward()
    assert (z.grad != 0).tolist() == [True, False, True, False]


def test_hardmax_shares_the_weight_among_the_maxima() -> None:
    z = torch.tensor([[1.0, 3.0, 3.0], [2.0, 1.0, 0.0], [5.0, 5.0, 5.0]])
    third = 1 / 3
    torch.testing.assert_close(hardmax(z), torch.tensor([[0, 0.5, 0.5], [1, 0, 0], [third, third, third]]))


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


def test_the_bound_is_reached_where_all_others_lie_one_gap_below() -> None:
    z = torch.tensor([1.0, 1.0, 0.5, 0.5, 0.5], dtype=torch.float64)
    for k in (2, 3, 5):
        assert float(hardmax_error(z, k, 3.0)) == pytest.approx(float(hardmax_bound(z, k, 3.0)), rel=1e-12)
