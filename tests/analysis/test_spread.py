"""Means and spreads of curves, against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from graphgps_kmip.analysis import by_layer, crossing, spread


def test_the_mean_and_both_spreads_are_those_of_small_numbers() -> None:
    values = torch.tensor([[[[1.0], [3.0]]], [[[5.0], [7.0]]]])  # two graphs, one layer, two heads, one k
    assert spread(values) == {"mean": [4.0], "std": [pytest.approx(5**0.5, rel=1e-5)], "std_graphs": [2.0]}


def test_the_first_layer_stands_apart_from_the_others_if_there_are_any() -> None:
    values = torch.arange(6.0).view(2, 3, 1, 1)
    parts = by_layer(values)
    assert {name: part.flatten().tolist() for name, part in parts.items()} == {"first": [0, 3], "others": [1, 2, 4, 5]}
    assert list(by_layer(values[:, :1])) == ["first"]


@pytest.mark.parametrize(("level", "expected"), [(0.5, 6.0), (0.2, 1.0), (0.4, 4.0), (1.0, 20.0), (0.1, 1.0)])
def test_a_level_is_reached_linearly_between_points(level: float, expected: float) -> None:
    assert crossing([1, 4, 8, 20], [0.2, 0.4, 0.6, 1.0], level) == pytest.approx(expected)


def test_a_level_that_rounding_leaves_out_is_reached_at_the_end() -> None:
    assert crossing([1, 4], [0.2, 0.9999999], 1.0) == 4
