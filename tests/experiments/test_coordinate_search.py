"""The linear search: what is tried, and which values are put together."""

from __future__ import annotations

import pytest

from graphgps_kmip.experiments.search_space import Factor, Space
from graphgps_kmip.experiments.tuning.linear import linear

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
    """What is tried after the first round with these scores; None: nothing."""
    engine = linear(SPACE)
    next(engine)
    try:
        (proposal,) = engine.send(list(scores))
    except StopIteration:
        return None
    return dict(proposal.choice)


def test_it_tries_the_default_once_and_each_value_of_one_factor_at_a_time() -> None:
    assert [dict(one.choice) for one in next(linear(SPACE))] == FIRST


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


def test_it_ends_with_a_word_about_the_combination() -> None:
    engine = linear(SPACE)
    next(engine)
    with pytest.raises(StopIteration, match="`search-depth8`, which was tried before"):
        engine.send([0.5, 0.4, 0.4, 0.7])
    engine = linear(SPACE)
    next(engine)
    engine.send([0.5, 0.6, 0.4, 0.7])
    with pytest.raises(StopIteration, match="The best values together are `search-lr0.01-depth8`.$"):
        engine.send([0.8])
