"""Pairwise cases of a test: few of all combinations of its arguments, in which every two values meet."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def pairwise(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return combinations of one value from each axis, such that each two values of two axes are in one of them.

    Most faults need one or two values to show (Kuhn et al. 2004), and 12 combinations hold all pairs of values where
    there are 96 in all. Greedy, so the number is small, not the least; the order is the same in every process.
    """
    combinations = list(itertools.product(*map(range, map(len, axes))))
    missing = {pair for combination in combinations for pair in _pairs(combination)}
    selected = []
    while missing:
        best = max(combinations, key=lambda combination: len(missing & _pairs(combination)))
        missing -= _pairs(best)
        selected.append(tuple(axis[i] for axis, i in zip(axes, best, strict=True)))
    return selected


def _pairs(combination: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    return set(itertools.combinations(enumerate(combination), 2))
