"""Mutated configs end in exit code 0, 2 or 3 with one line that names the key: no traceback, no hang."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.processes import preloaded


def fuzz(folder: Path, seed: int, count: int) -> list[dict[str, Any]]:
    done = preloaded("-m", "tests.gym.fuzz", str(folder), str(seed), str(count))
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(mutants: list[dict[str, Any]], count: int) -> None:
    assert len(mutants) == count
    for one in mutants:
        what = f"{one['base']}, {one['where']}: {one['key']} {one['value']}"
        assert not one["crash"], f"{what}\n{one['crash']}"
        assert one["code"] in (0, 2, 3), what
        assert len(one["error"]) == (one["code"] != 0), f"{what}: {one['error']}"
        if one["code"] == 2 and one["where"] != "text":
            group = one["key"].rpartition(".")[0] or one["key"]  # of a part that is switched on, another key may miss
            assert one["key"] in one["error"][0] or group in one["error"][0], f"{what}: {one['error']}"
    accepted = sum(one["code"] == 0 for one in mutants)
    assert count // 5 < accepted < count, f"{accepted} of {count} are accepted: the mutants no longer try both"


@pytest.mark.parametrize("count", [64, pytest.param(300, marks=pytest.mark.thorough)])  # the 64 begin the 300
def test_mutants_end_without_a_traceback_and_without_a_hang(count: int, tmp_path: Path) -> None:
    check(fuzz(tmp_path, 0, count), count)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_1500_more_mutants_end_without_a_traceback_and_without_a_hang(seed: int, tmp_path: Path) -> None:
    check(fuzz(tmp_path, seed, 300), 300)
