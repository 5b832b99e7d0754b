"""What tests start and wait for: processes, with one limit for all that only ends what hangs.

The limit says nothing about speed. A test that measures counts processor time; every wait is for a condition.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HANGS = 3600.0  # seconds: twenty times the longest wait on an idle machine, for others may use the same cores

FORKING = """
import json, os, sys
folder, preload, *codes = sys.argv[1:]
sys.argv[1:] = []
exec(preload, {"__name__": "__main__"})
statuses = []
for number, code in enumerate(codes):
    child = os.fork()
    if not child:
        for stream in (1, 2):
            os.dup2(os.open(f"{folder}/{number}.{stream}", os.O_CREAT | os.O_WRONLY), stream)
        exec(code, {"__name__": "__main__"})
        sys.exit()
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(statuses))
"""


def run(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in the project's folder and return what it printed.

    Args:
        command: its words.
        options: those of `subprocess.run`, in place of cwd, the captured text and the limit that are set here.
    """
    given: dict[str, Any] = {"cwd": ROOT, "capture_output": True, "text": True, "check": False, "timeout": HANGS}
    return subprocess.run(command, **given | options)


def python(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this Python with these words, see `run`."""
    return run([sys.executable, *words], **options)


def forked(preload: str, codes: Sequence[str]) -> list[subprocess.CompletedProcess[str]]:
    """Run each code in a process of its own, all forked from one that has run `preload`: imports are waited for once.

    Args:
        preload: code that runs once, first; it should only import.
        codes: code of each process, which finds the state that `preload` left and nothing of the others.
    """
    with tempfile.TemporaryDirectory() as folder:
        statuses = python("-c", FORKING, folder, preload, *codes, check=True).stdout.splitlines()[-1]
        files = [[Path(folder, f"{number}.{stream}") for stream in (1, 2)] for number in range(len(codes))]
        ended = zip(codes, json.loads(statuses), files, strict=True)
        return [
            subprocess.CompletedProcess(code, status, *(file.read_text() for file in both))
            for code, status, both in ended
        ]


def wait_for(true: Callable[[], object]) -> None:
    """Wait until something holds."""
    until = time.monotonic() + HANGS
    while not true():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)
