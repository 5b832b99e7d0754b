"""Run folder: paths of its files, checkpoints in it, and errors of a failed write.

::

    <out_dir>/<config name>[-<name_tag>]/      one experiment
        <seed or split>/                       one run
            config.yaml  record.json  logging.log  curves.png  attention.{npz,png}
            train/stats.json  val/stats.json  test/stats.json  brec.jsonl (of train.mode brec)
            ckpt/<epoch>.ckpt  ckpt/best.ckpt
            scores.pt (of an estimator: the attention weight of each edge at the best epoch)
            predictions.csv (of --predict)
        agg/{train,val,test}/{stats,best}.json
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graphgps_kmip.errors import RunFolderError

SPLITS = ("train", "val", "test")
RECORD = "record.json"
CONFIG = "config.yaml"
FIXES = {
    errno.ENOSPC: "make room on this disk, or set another out_dir",
    errno.EDQUOT: "your quota is used up: make room, or set another out_dir",
}


def stats_file(run_dir: Path, split: str) -> Path:
    """Return the path of the statistics of a split, GraphGym's."""
    return run_dir / split / "stats.json"


def checkpoint_file(run_dir: Path, epoch: int) -> Path:
    """Return the path of the checkpoint of the state after `epoch`."""
    return run_dir / "ckpt" / f"{epoch}.ckpt"


def best_checkpoint_file(run_dir: Path) -> Path:
    """Return the path of the checkpoint of the best epoch."""
    return run_dir / "ckpt" / "best.ckpt"


def scores_file(run_dir: Path) -> Path:
    """Return the path of the scores that a run writes whose network is an estimator."""
    return run_dir / "scores.pt"


def numbered(run_dir: Path) -> dict[int, Path]:
    """Return the run's checkpoints by epoch, oldest first, without `best.ckpt`."""
    paths = [path for path in (run_dir / "ckpt").glob("*.ckpt") if path.stem.isdecimal() and path.is_file()]
    return dict(sorted((int(path.stem), path) for path in paths))


def best_or_newest(run_dir: Path) -> Path | None:
    """Return the checkpoint of the best epoch, else that of the newest; None if there is none."""
    best = best_checkpoint_file(run_dir)
    return best if best.is_file() else next(reversed(numbered(run_dir).values()), None)


def run_folders(out_dir: Path) -> list[Path]:
    """Return the folders of the runs of an experiment, by number: those whose names are whole numbers."""
    if not out_dir.is_dir():
        return []
    folders = [path for path in out_dir.iterdir() if path.name.isdecimal() and path.is_dir()]
    return sorted(folders, key=lambda path: int(path.name))


@contextmanager
def writing(path: Path, safe: str = "What was there before is unchanged.") -> Iterator[None]:
    """Raise a `RunFolderError` for an OSError while `path` is written: what, where, how to fix it, what is `safe`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        fix = FIXES.get(error.errno, "set another out_dir, or make it writable")
        raise RunFolderError(f"Cannot write {path}: {reason}; {fix}. {safe}".rstrip()) from error
