"""Durations as text."""

from __future__ import annotations

from datetime import datetime

import pytest

from graphgps_kmip.common.environment import axis_duration, duration, now


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.25, "0.25 s"),
        (0.0123, "0.012 s"),
        (59.7, "1 min"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (274000, "3 d 4 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(0, "0 ms"), (0.05, "50 µs"), (12.34, "12.3 ms"), (2500, "2.5 s"), (4e6, "4,000 s")]
)
def test_a_duration_at_an_axis_has_one_unit(milliseconds: float, text: str) -> None:
    assert axis_duration(milliseconds) == text


def test_a_date_has_a_zone_and_no_fractions() -> None:
    date = datetime.fromisoformat(now())
    assert date.tzinfo is not None
    assert date.microsecond == 0
