"""Run under torchrun by test_restarts.py: a script in which a process is killed once at each given epoch.

Arguments: a folder for marks, kills such as ``3@2,0@4`` (rank 3 in epoch 2, rank 0 in epoch 4), the script and its own.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

from graphgps_kmip.train import loop


def kill_at(marks: Path, rank: int, epoch: int) -> None:
    """Let this process be killed before it validates this epoch, unless that was done before."""
    run_epoch = loop.run_epoch

    def run_or_die(session: Any, loader: Any, split: str, number: int, *shared: Any) -> dict[str, Any]:
        mark = marks / f"{rank}@{epoch}"
        if (session.fabric.global_rank, split, number) == (rank, "val", epoch) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return run_epoch(session, loader, split, number, *shared)

    loop.run_epoch = run_or_die


def main(marks: str, kills: str, *arguments: str) -> None:
    for kill in kills.split(","):
        rank, epoch = kill.split("@")
        kill_at(Path(marks), int(rank), int(epoch))
    sys.argv[:] = arguments
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
