"""What tests start and wait for: processes, with one limit for all that only ends what hangs.

The limit says nothing about speed. A test that measures counts processor time; every wait is for a condition.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HANGS = 1200.0  # seconds: forty times the longest wait on an idle machine, for others may use the same cores


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


def wait_for(true: Callable[[], object]) -> None:
    """Wait until something holds."""
    until = time.monotonic() + HANGS
    while not true():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)
