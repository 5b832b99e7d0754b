"""The time limit of what tests start stands in one place, and only ends what hangs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests import processes

HERE = Path(__file__).parent
LIMIT = re.compile(r"\b(timeout\s*=\s*[\d(]|\.(wait|join|acquire)\(\s*\d|subprocess\.(run|call|check_\w+)\()")


def test_no_test_has_a_time_limit_of_its_own() -> None:
    files = [file for file in HERE.rglob("*.py") if file.name not in ("processes.py", "test_processes.py")]
    found = [
        f"{file.relative_to(HERE)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if LIMIT.search(line)
    ]
    assert len(files) > 250
    assert found == []  # use run, python, wait_for and HANGS of tests/processes.py


@pytest.mark.parametrize("line", ["subprocess.run(words)", "process.communicate(timeout=30)", "other.wait(10)"])
def test_a_limit_of_its_own_would_be_found(line: str) -> None:
    assert LIMIT.search(line)


def test_forked_processes_share_the_imports_and_nothing_else() -> None:
    codes = ["import sys; print(sys.x); sys.x = 2", "print(sys.x)", "import sys; print(sys.x); sys.exit(3)"]
    first, second, third = processes.forked("import sys; sys.x = 1", codes)
    assert (first.returncode, first.stdout, first.stderr) == (0, "1\n", "")
    assert (second.returncode, second.stdout) == (1, "")  # what it did not import, it does not have
    assert second.stderr.endswith("NameError: name 'sys' is not defined\n")
    assert (third.returncode, third.stdout) == (3, "1\n")


def test_the_limit_is_generous_and_ends_what_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.HANGS >= 1200
    monkeypatch.setattr(processes, "HANGS", 0.1)
    with pytest.raises(subprocess.TimeoutExpired):
        processes.python("-S", "-c", "import time; time.sleep(60)")
    with pytest.raises(AssertionError, match="waited too long"):
        processes.wait_for(lambda: False)
    assert processes.python("-S", "-c", "print(3)", timeout=60).stdout == "3\n"
