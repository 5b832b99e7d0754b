"""One rule says which epoch is the best: for training as it goes, and for tables afterwards."""

from __future__ import annotations

import itertools
import math

import pytest

from graphgps_kmip.errors import ResultsError
from graphgps_kmip.results.best_epoch import best_epoch, is_better

NAN, INF = float("nan"), float("inf")
VALUES = (0.5, 0.7, NAN, INF, -INF)


def run(values: tuple[float, ...], name: str = "f1") -> dict:
    return {"val": {epoch: {"epoch": epoch, "loss": 0.0, name: value} for epoch, value in enumerate(values)}}


@pytest.mark.parametrize("agg", ["argmax", "argmin"])
def test_training_and_tables_choose_the_same_epoch_of_all_sequences_and_it_is_finite_if_one_is(agg: str) -> None:
    for values in itertools.product(VALUES, repeat=4):
        best, chosen = None, None  # as the training loop keeps them
        for epoch, value in enumerate(values):
            if is_better(value, best, agg == "argmax"):
                best, chosen = value, epoch
        assert best_epoch(run(values), "f1", agg) == chosen, values
        finite = [value for value in values if math.isfinite(value)]
        if finite:
            extremum = max(finite) if agg == "argmax" else min(finite)
            assert chosen == values.index(extremum), values
        else:
            assert chosen == 0, values


def test_a_metric_that_is_no_number_is_an_error_with_its_name() -> None:
    with pytest.raises(ResultsError, match="no 'f1'"):
        best_epoch(run(("0.5", "0.7")), "f1")


def test_statistics_without_a_line_have_no_best_epoch() -> None:
    for empty in ({}, {"val": {}}):
        with pytest.raises(ResultsError, match="no line; train it again"):
            best_epoch(empty)
