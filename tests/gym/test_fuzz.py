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
    for mutant in mutants:
        what = f"{mutant['base']}, {mutant['where']}: {mutant['key']} {mutant['value']}"
        assert not mutant["crash"], f"{what}\n{mutant['crash']}"
        assert mutant["code"] in (0, 2, 3), what
        assert len(mutant["error"]) == (mutant["code"] != 0), f"{what}: {mutant['error']}"
        if mutant["code"] == 2 and mutant["where"] != "text":
            group = mutant["key"].rpartition(".")[0] or mutant["key"]  # a part may miss another key
            assert mutant["key"] in mutant["error"][0] or group in mutant["error"][0], f"{what}: {mutant['error']}"
    accepted = sum(mutant["code"] == 0 for mutant in mutants)
    assert count // 5 < accepted < count, f"{accepted} of {count} are accepted: the mutants no longer try both"


@pytest.mark.parametrize("count", [64, pytest.param(300, marks=pytest.mark.slow)])  # the 64 begin the 300
def test_mutants_end_without_a_traceback_and_without_a_hang(count: int, tmp_path: Path) -> None:
    check(fuzz(tmp_path, 0, count), count)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_1500_more_mutants_end_without_a_traceback_and_without_a_hang(seed: int, tmp_path: Path) -> None:
    check(fuzz(tmp_path, seed, 300), 300)
