"""Random splits: seeded, complete, stratified where asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graphgps_kmip.data import random_split


@pytest.mark.parametrize("labels", [None, [0, 1] * 25], ids=["plain", "stratified"])
def test_every_sample_is_in_exactly_one_part(labels: list[int] | None) -> None:
    splits = random_split(50, (0.5, 0.3, 0.2), seed=3, labels=labels)
    assert [len(part) for part in splits] == [25, 15, 10]
    assert torch.cat(splits).sort().values.tolist() == list(range(50))
    assert all(part.dtype == torch.int64 for part in splits)


def test_the_seed_decides() -> None:
    first, again, other = (random_split(30, seed=seed).train.tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_a_stratified_split_divides_each_class_alike() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    for part, share in zip(random_split(160, (0.6, 0.2, 0.2), labels=labels), (0.6, 0.2, 0.2), strict=True):
        assert np.bincount(labels[part]).tolist() == [100 * share, 50 * share, 10 * share]


@pytest.mark.parametrize("fractions", [(0.8, 0.1, 0.2), (1.0, 0.0, 0.0), (0.5, 0.5), (1.2, -0.1, -0.1)])
def test_shares_that_do_not_make_a_whole_are_refused(fractions: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"dataset\.split must be three positive shares"):
        random_split(10, fractions)


def test_too_few_samples_to_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="dataset.split: 1 samples cannot be divided .* each part needs one or more:"):
        random_split(1)
    with pytest.raises(ValueError, match="20 samples cannot be divided .* one or more of each class:"):
        random_split(20, labels=[0] * 19 + [1])
