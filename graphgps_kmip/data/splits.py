"""Splits of a data set into training, validation and test part: random, stratified, and k-fold; seeded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphgps_kmip.errors import InputError

FOLD_SEED = 123  # that of GraphGPS: its folds are ours


class Splits(NamedTuple):
    """Indices (int64) of the samples that train, validate and test."""

    train: Tensor
    val: Tensor
    test: Tensor


def random_split(
    num: int,
    fractions: Sequence[float] = (0.6, 0.2, 0.2),
    seed: int = 0,
    labels: Sequence[int] | np.ndarray | None = None,
) -> Splits:
    """Draw a split of ``num`` samples; the indices of each part come in increasing order.

    Args:
        num: number of samples.
        fractions: shares of training, validation and test, positive, summing to 1.
        seed: of the draw; the same seed gives the same split.
        labels: class of each sample: every class is divided by the same fractions. None: classes are not looked at.

    Raises:
        ValueError: the fractions do not sum to 1, or there are too few samples (of a class) to divide.
    """
    from sklearn.model_selection import train_test_split  # takes a second or two to import

    if len(fractions) != 3 or min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-6:
        raise InputError(
            f"dataset.split must be three positive shares that sum to 1, as [0.6, 0.2, 0.2], got {list(fractions)}"
        )
    train_share, val_share, test_share = fractions
    labels = None if labels is None else np.asarray(labels)
    try:
        train, rest = train_test_split(np.arange(num), train_size=train_share, random_state=seed, stratify=labels)
        rest_labels = None if labels is None else labels[rest]
        val_share = val_share / (val_share + test_share)
        val, test = train_test_split(rest, train_size=val_share, random_state=seed, stratify=rest_labels)
    except ValueError as error:
        each = "each part needs one or more" if labels is None else "each part needs one or more of each class"
        raise InputError(
            f"dataset.split: {num:,} samples cannot be divided into {list(fractions)}: {each}: give more samples, or a "
            "split of your own"
        ) from error
    return Splits(*(torch.from_numpy(np.sort(part)) for part in (train, val, test)))


def fold_split(num: int, folds: int, index: int, labels: Sequence[int] | Tensor | None = None) -> Splits:
    """Return one split of a cross-validation, as in GraphGPS: fold ``index`` tests, the next validates, others train.

    Args:
        num: number of samples.
        folds: number of parts, at least 3.
        index: which fold tests, from 0.
        labels: class of each sample: every fold gets its share of each class. None: classes are not looked at.

    Raises:
        ValueError: fewer than 3 folds, no such fold, or too few samples.
    """
    from sklearn.model_selection import KFold, StratifiedKFold  # takes a second or two to import

    if folds < 3:
        raise InputError(f"dataset.split_mode: cross-validation needs 3 folds or more, got {folds}")
    if not 0 <= index < folds:
        raise InputError(f"dataset.split_index must be in 0..{folds - 1} for {folds} folds, got {index}")
    kind = KFold if labels is None else StratifiedKFold
    try:
        parts = [test for _, test in kind(folds, shuffle=True, random_state=FOLD_SEED).split(np.zeros(num), labels)]
    except ValueError as error:
        each = "each fold needs one or more" if labels is None else "each fold needs one or more of each class"
        raise InputError(
            f"dataset.split_mode: {num:,} samples cannot be divided into {folds} folds: {each}: take fewer folds"
        ) from error
    test, val = parts[index], parts[(index + 1) % folds]
    train = np.setdiff1d(np.arange(num), np.concatenate([test, val]))
    return Splits(*(torch.from_numpy(np.sort(part)) for part in (train, val, test)))
