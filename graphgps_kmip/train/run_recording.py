"""Run folder of a training: its lock, what happens to an earlier run in it, and record.json from start to end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import Timeout

from graphgps_kmip.common.atomic_write import free_name, remove_leftovers
from graphgps_kmip.common.environment import code_version, hardware, now, package_versions, peak_memory
from graphgps_kmip.common.file_lock import held
from graphgps_kmip.errors import RunFolderError
from graphgps_kmip.results.run_folder import stats_file, writing
from graphgps_kmip.results.run_record import is_finished, read_record, write_record
from graphgps_kmip.train.settings import RunState, TrainSettings

if TYPE_CHECKING:
    from graphgps_kmip.train.loop import Session

log = logging.getLogger(__name__)
# The loader workers of a run killed by SIGKILL inherit its lock and notice their parent's end within about 5 s.
LOCK_WAIT = 10.0


def open_record(run_dir: Path, settings: TrainSettings) -> dict[str, Any]:
    """Write and return the record of a run that is not finished: code version of now, number of resumes."""
    earlier = read_record(run_dir) or {}
    resumed = stats_file(run_dir, "train").exists()
    record = {
        "finished": False,
        "config_hash": settings.config_hash,
        "resumes": earlier.get("resumes", 0) + resumed,
        "code_version": code_version(),
    }
    with writing(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        remove_leftovers(run_dir)
    write_record(run_dir, record)
    return record


def closed_record(record: dict[str, Any], session: Session, state: RunState, wall_time: float) -> dict[str, Any]:
    """Return the record of a finished run.

    `wall_time` counts the seconds of all sessions; `seconds_per_epoch` is the mean over all `epochs`, evaluation
    included; `peak_memory` is that of the last session and process, in bytes; `best` is that of `RunState`.
    """
    settings = session.settings
    return {
        **settings.notes,
        **record,
        "finished": True,
        "finished_at": now(),
        "name": settings.name,
        "seed": settings.seed,
        "precision": settings.precision,
        "processes": session.fabric.world_size,
        "packages": package_versions(),
        "hardware": hardware(session.fabric.device),
        "wall_time": wall_time,
        "seconds_per_epoch": state.seconds / (state.epoch + 1),
        "peak_memory": peak_memory(),
        "params": session.num_params,
        "max_epoch": settings.max_epoch,
        "epochs": state.epoch + 1,
        "metric_best": session.task.metric_best,
        "best": state.best,
    }


@contextmanager
def locked(run_dir: str | Path, wait: float = LOCK_WAIT) -> Iterator[None]:
    """Hold the run folder for this process; the lock dies with the process, and may be taken again within it.

    Args:
        run_dir: `<out_dir>/<seed>`; the lock is `.<seed>.lock` next to it, so that the folder can be moved meanwhile.
        wait: seconds to wait for another process.

    Raises:
        RunFolderError: another process holds it, or the place cannot be written.
    """
    run_dir = Path(run_dir).absolute()
    with ExitStack() as stack:
        with writing(run_dir):
            try:
                stack.enter_context(held(run_dir.with_name(f".{run_dir.name}.lock"), wait))
            except Timeout:
                text = f"{run_dir} is in use by another process; wait for it, or set another out_dir."
                raise RunFolderError(text) from None
        yield


def prepare_run_dir(
    run_dir: str | Path, config_hash: str, overwrite: bool = False, auto_resume: bool = False, wait: float = LOCK_WAIT
) -> str:
    """Prepare the run's folder and return what to do: "run", "resume" or "finished".

    A finished run of the same configuration is not repeated; an unfinished one is resumed if `auto_resume`. Any other
    content is moved to `<run_dir>.old-N` with the smallest free N, never deleted.

    Args:
        run_dir: `<out_dir>/<seed>`.
        config_hash: identifies the configuration.
        overwrite: start anew even after a finished run.
        auto_resume: go on with an unfinished run.
        wait: seconds to wait for another process that uses the folder.

    Raises:
        RunFolderError: the folder cannot be written, or another process uses it.
    """
    run_dir = Path(run_dir).absolute()
    with locked(run_dir, wait):
        record = read_record(run_dir) or {}
        if record.get("config_hash") == config_hash and not overwrite:
            if is_finished(record):
                log.warning("%s is finished already and is not repeated; --overwrite starts anew.", run_dir)
                return "finished"
            if auto_resume:
                return "resume"
        with writing(run_dir):
            if run_dir.exists() and not (run_dir.is_dir() and not any(run_dir.iterdir())):
                aside = run_dir.rename(free_name(run_dir, "old"))
                log.warning("%s held another or an unfinished run, which is now in %s.", run_dir, aside)
            run_dir.mkdir(exist_ok=True)
        write_record(run_dir, {"finished": False, "config_hash": config_hash, "resumes": 0})
    return "run"
