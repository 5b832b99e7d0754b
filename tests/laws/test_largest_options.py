"""The largest values that options of attentions and message passing layers may have: they end, at worst in a line."""

from __future__ import annotations

from tests.processes import preloaded


def test_the_largest_value_of_each_number_is_built_and_called_in_seconds_or_refused_in_a_line() -> None:
    done = preloaded("-m", "tests.laws.largest_options", check=True)
    assert done.stdout.splitlines() == []
