"""The time limit of what tests start is in one place, and only ends what hangs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests import processes

HERE = Path(__file__).parent
LIMIT = re.compile(r"\b(timeout\s*=\s*[\d(]|\.(wait|join|acquire)\(\s*\d|subprocess\.(run|call|check_\w+)\()")


def test_no_test_has_a_time_limit_of_its_own() -> None:
    files = [file for file in HERE.rglob("*.py") if file.name not in ("processes.py", "test_processes.py")]
    limits = [
        f"{file.relative_to(HERE)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if LIMIT.search(line)
    ]
    assert len(files) > 250
    assert limits == []  # use run, python, wait_for and HANGS of tests/processes.py


LOOK = """
import os, sys, tempfile
print(sys.argv[1:], os.getcwd(), os.environ.get("MINE"), tempfile.gettempdir(), end=" ")
print(__name__, sys.stdin.read() == "", {text!r})
print(sorted(name for name in sys.modules if name.startswith({prefixes})), file=sys.stderr)
print("torch" in sys.modules)
sys.exit(3)
"""
PREFIXES = ("graphgps_kmip", "tests", "run.", "torch_geometric.graphgym", "yacs", "ogb")


@pytest.mark.parametrize("kind", ["-c", "-m", "script"])
def test_a_preloaded_process_is_as_a_new_one_but_for_the_libraries_that_are_imported(kind: str, tmp_path: Path) -> None:
    code = LOOK.format(text=kind, prefixes=PREFIXES)
    (tmp_path / "look_at.py").write_text(code)
    first = {"-c": ["-c", code], "-m": ["-m", "look_at"], "script": [tmp_path / "look_at.py"]}[kind]
    environment = os.environ | {"MINE": "1", "TMPDIR": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    new, ready = (
        start(*first, "a b", "c", cwd=tmp_path, env=environment) for start in (processes.python, processes.preloaded)
    )
    assert new.stdout == f"['a b', 'c'] {tmp_path} 1 {tmp_path} __main__ True {kind}\nFalse\n"
    assert ready.stdout == new.stdout.replace("False", "True")
    assert (ready.returncode, ready.stderr) == (new.returncode, new.stderr) == (3, "[]\n")


def test_preloaded_processes_share_nothing_and_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.preloaded("-c", "import sys, torch; sys.x = torch.x = 1; import yacs").returncode == 0
    code = "import sys, torch; print(hasattr(sys, 'x'), hasattr(torch, 'x'), 'yacs' in sys.modules)"
    assert processes.preloaded("-c", code).stdout == "False False False\n"
    failed = processes.preloaded("-c", "1 / 0")
    assert (failed.returncode, failed.stderr.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")
    assert processes.preloaded("-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)").returncode == -9
    with pytest.raises(subprocess.CalledProcessError):
        processes.preloaded("-c", "raise SystemExit(2)", check=True)
    with pytest.raises(ValueError, match="'-S'.*use python for options"):
        processes.preloaded("-S", "-c", "")
    monkeypatch.setattr(processes, "HANGS", 0.5)
    for start in (processes.preloaded, processes.python):
        with pytest.raises(subprocess.TimeoutExpired):
            start("-c", "import time; time.sleep(60)")
    with pytest.raises(AssertionError, match="waited too long"):
        processes.wait_for(lambda: False)
    monkeypatch.undo()
    assert processes.preloaded("-c", "print(3)").stdout == "3\n"  # the server still answers
