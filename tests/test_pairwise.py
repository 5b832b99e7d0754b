"""Pairwise cases hold every two values of two axes, and are fewer than all combinations."""

from __future__ import annotations

from itertools import combinations

from tests.pairwise import pairwise

AXES = ["abcd", [40, 1, 0], [False, True], [4, 512], [{}, {"option": 1}]]


def test_every_two_values_of_two_axes_meet() -> None:
    cases = pairwise(*AXES)
    assert len(cases) < 16  # of 96; at least 12, those of the two longest axes
    for one, other in combinations(range(len(AXES)), 2):
        assert all(any(case[one] == a and case[other] == b for case in cases) for a in AXES[one] for b in AXES[other])


def test_one_axis_gives_each_value_and_an_empty_one_nothing() -> None:
    assert pairwise([1, 2], "x") == [(1, "x"), (2, "x")]
    assert pairwise([1, 2], []) == []
