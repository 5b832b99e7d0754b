"""Coordinate search: which trials it asks for, and which values it puts together."""

from __future__ import annotations

from graphgps_kmip.experiments.hyperparameter_search import coordinate_search
from graphgps_kmip.experiments.search_space import Factor, Space

SPACE = Space(
    (
        Factor("lr", "0.1", {"0.1": {"optim.base_lr": 0.1}, "0.01": {"optim.base_lr": 0.01}}),
        Factor("depth", "4", {"2": {"gt.layers": 2}, "4": {"gt.layers": 4}, "8": {"gt.layers": 8}}),
    )
)
FIRST = [
    {"lr": "0.1", "depth": "4"},
    {"lr": "0.01", "depth": "4"},
    {"lr": "0.1", "depth": "2"},
    {"lr": "0.1", "depth": "8"},
]


def after(*scores: float | None) -> dict[str, str] | None:
    """What is tried after the first trials with these scores; None: nothing."""
    tags = map(SPACE.tag, FIRST)
    found = coordinate_search(SPACE, dict(zip(tags, scores, strict=True)))
    return dict(found[0]) if found else None


def test_it_tries_the_default_once_and_each_value_of_one_factor_at_a_time() -> None:
    assert coordinate_search(SPACE, {}) == FIRST


def test_it_continues_with_the_trials_that_did_not_end() -> None:
    assert coordinate_search(SPACE, {"search-default": 0.5, "search-depth2": None}) == [FIRST[1], FIRST[3]]


def test_the_best_value_of_each_factor_are_put_together() -> None:
    assert after(0.5, 0.6, 0.4, 0.7) == {"lr": "0.01", "depth": "8"}


def test_a_combination_that_was_tried_is_not_tried_again() -> None:
    assert after(0.5, 0.4, 0.4, 0.7) is None
    assert after(0.5, 0.4, 0.4, 0.4) is None


def test_of_equals_the_default_stays_and_then_the_first() -> None:
    assert after(0.5, 0.6, 0.5, 0.5) is None  # lr alone
    assert after(0.5, 0.6, 0.7, 0.7) == {"lr": "0.01", "depth": "2"}


def test_what_failed_is_never_best() -> None:
    assert after(None, 0.1, None, 0.1) == {"lr": "0.01", "depth": "8"}
    assert after(0.5, None, 0.6, None) is None
    assert after(None, None, None, None) is None
