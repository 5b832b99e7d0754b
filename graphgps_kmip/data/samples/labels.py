"""Labels of every task type from hidden values."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

TOKENS = 5  # words of a function name in ogbg-code2
POSITIVES, NEGATIVES = 4, 10  # pairs of nodes in a graph; negatives for each positive


class Labels:
    """The label of each hidden value, drawn once for a data set.

    Classes are the values themselves; of several labels each stands for one value; targets are cosines of the value's
    angle, each with another phase; tokens are random.

    Args:
        rng: draws them.
        task_type: a row of `TASK_TYPES`.
        values: number C of hidden values.
        classes: number of classes, label columns, targets or tokens.
    """

    def __init__(self, rng: np.random.Generator, task_type: str, values: int, classes: int) -> None:
        value, column = np.arange(values), np.arange(classes)
        table = {
            "classification": lambda: value,
            "classification_multilabel": lambda: value[:, None] == rng.permutation(classes) % values,
            "regression": lambda: np.cos(2 * np.pi * (value[:, None] / values + column / classes)),
            "subtoken_prediction": lambda: rng.integers(classes, size=(values, TOKENS)),
            "link_ranking": lambda: value,  # not used: see `pairs`
            "link_prediction": lambda: value,
        }[task_type]()
        self.table = torch.from_numpy(table if table.dtype == np.int64 else table.astype(np.float32))

    def __call__(self, value: np.ndarray) -> Tensor:
        """Return the labels of hidden values (rows,): (rows,) int64, or (rows, columns)."""
        return self.table[torch.from_numpy(value)]


def pairs(rng: np.random.Generator, own: np.ndarray, beacon: int, values: int) -> tuple[Tensor, Tensor]:
    """Return pairs of nodes, `NEGATIVES` after each of `POSITIVES`, with the same first node; and their labels.

    A pair is positive if its values and the beacon's sum to a multiple of C. In small graphs pairs come twice.

    Shapes: own (N,) -> (2, L) int64, (L,) int64 in {0, 1}.
    """
    node = np.arange(len(own))
    linked = (own[:, None] + own + beacon) % values == 0  # (N, N)
    other = node[:, None] != node
    able = np.flatnonzero((linked & other).any(1) & (~linked & other).any(1))
    ends = []
    for first in rng.choice(able, POSITIVES):
        positive = rng.choice(np.flatnonzero(linked[first] & other[first]))
        negatives = rng.choice(np.flatnonzero(~linked[first] & other[first]), NEGATIVES)
        ends.append(np.stack([np.full(1 + NEGATIVES, first), [positive, *negatives]]))
    label = np.tile(np.arange(1 + NEGATIVES) == 0, POSITIVES)
    return torch.from_numpy(np.concatenate(ends, axis=1)), torch.from_numpy(label.astype(np.int64))
