"""Run by test_resume.py: trains the toy in forked processes that are killed at chosen moments, then resumes each.

One process imports torch once and forks for every moment; each child has a fresh copy of everything.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from graphgps_kmip.common import atomic_write as files
from graphgps_kmip.train import checkpoint, loop, reporter
from tests.train.toy import run

EPOCHS = 6


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_batch(number: int, action: Callable[[], None]) -> Callable[[Any], None]:
    seen = []

    def hook(_batch: Any) -> None:
        seen.append(1)
        if len(seen) == number:
            action()

    return hook


def during_an_epoch() -> dict:
    return {"hook": at_batch(23, die), "ckpt_period": 2}  # 7 batches an epoch: in epoch 3, when 1.ckpt is the newest


def before_the_first_checkpoint() -> dict:
    return {"hook": at_batch(23, die), "ckpt_period": 100}


def during_evaluation() -> dict:
    return {"hook": at_batch(25, die)}


def within_a_line_of_stats() -> dict:
    append = reporter.append_stats

    def half(run_dir: Path, split: str, stats: dict) -> None:
        append(run_dir, split, stats)
        if split == "val" and stats["epoch"] == 3:
            path = run_dir / split / "stats.json"
            path.write_bytes(path.read_bytes()[:-20])
            die()

    reporter.append_stats = half
    return {}


def between_the_lines_and_the_checkpoint() -> dict:
    keep = checkpoint.Checkpointer.keep
    checkpoint.Checkpointer.keep = lambda self, state, best: die() if state.epoch == 3 else keep(self, state, best)
    return {}


def before_a_checkpoint_is_renamed() -> dict:
    replace = os.replace

    def rename(source: Path, target: Path) -> None:
        if Path(target).name == "3.ckpt":
            Path(source).write_bytes(Path(source).read_bytes()[:100])
            die()
        replace(source, target)

    files.os.replace = rename
    return {}


def before_the_older_checkpoint_is_removed() -> dict:
    checkpoint.Path.unlink = lambda *_, **__: die()
    return {}


def before_the_record_is_written() -> dict:
    loop.write_record = lambda *_: die()
    return {}


MOMENTS = (
    during_an_epoch,
    before_the_first_checkpoint,
    during_evaluation,
    within_a_line_of_stats,
    between_the_lines_and_the_checkpoint,
    before_a_checkpoint_is_renamed,
    before_the_older_checkpoint_is_removed,
    before_the_record_is_written,
)


def interrupted() -> dict:
    return {"hook": at_batch(23, lambda: os.kill(os.getpid(), signal.SIGINT)), "ckpt_period": 100}


def terminated_twice(pause: float = 1.2) -> dict:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(pause)
        os.kill(os.getpid(), signal.SIGTERM)

    return {"hook": at_batch(23, twice), "ckpt_period": 100}


def terminated_with_an_echo() -> dict:
    return terminated_twice(0.0)


SIGNALS = (interrupted, terminated_with_an_echo, terminated_twice)


def forked(function: Callable[[], object]) -> int:
    """Run the function in a forked process; return its exit code, negative if a signal killed it."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        function()
        code = 0
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.stderr.flush()
        os._exit(code)


def first(run_dir: Path, prepare: Callable[[], dict]) -> None:
    run(run_dir, max_epoch=EPOCHS, **prepare())


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    forked(lambda: run(folder / "uninterrupted", max_epoch=EPOCHS))
    for moment in MOMENTS + SIGNALS:
        run_dir = folder / moment.__name__
        print(moment.__name__, forked(lambda: first(run_dir, moment)), end=" ")  # noqa: B023 (runs at once)
        there = [path.stem for path in (run_dir / "ckpt").glob("[0-9]*.ckpt")]
        print(",".join(there) or "none", end=" ", flush=True)
        print(forked(lambda: run(run_dir, max_epoch=EPOCHS, auto_resume=True)), flush=True)  # noqa: B023


if __name__ == "__main__":
    main(Path(sys.argv[1]))
