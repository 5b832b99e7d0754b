"""Lock of a run folder, and its preparation: resume, repeat, or move an earlier run aside."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import Timeout

from graphgps_kmip.common.atomic_write import free_name
from graphgps_kmip.common.file_lock import held
from graphgps_kmip.errors import RunFolderError
from graphgps_kmip.results.run_folder import writing
from graphgps_kmip.results.run_record import is_finished, read_record, write_record

log = logging.getLogger(__name__)

# The loader workers of a run killed by SIGKILL inherit its lock and notice their parent's end within about 5 s.
LOCK_WAIT = 10.0


@contextmanager
def locked(run_dir: str | Path, wait: float = LOCK_WAIT) -> Iterator[None]:
    """Hold the run folder for this process; the lock dies with the process, and may be taken again within it.

    Args:
        run_dir: the run's folder, `<out_dir>/<seed>`; the lock is beside it as `.<seed>.lock`, so that the folder
            can be moved while it is held.
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
            _move_aside(run_dir)
            run_dir.mkdir(exist_ok=True)
        write_record(run_dir, {"finished": False, "config_hash": config_hash, "resumes": 0})
    return "run"


def _move_aside(run_dir: Path) -> None:
    if not run_dir.exists() or (run_dir.is_dir() and not any(run_dir.iterdir())):
        return
    target = free_name(run_dir, "old")
    run_dir.rename(target)
    log.warning("%s held another or an unfinished run, which is now in %s.", run_dir, target)
