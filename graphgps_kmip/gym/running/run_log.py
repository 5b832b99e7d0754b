"""Where the log of a run goes: the screen, and ``logging.log`` in its folder."""

from __future__ import annotations

import io
import logging
import os
import sys
from pathlib import Path

from lightning_fabric import Fabric
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.logger import set_printing

from graphgps_kmip.results.run_folder import writing

SAFE = "The results so far are unchanged."


class RunLog(logging.FileHandler):
    """File of a run's log; a full disk ends the run with one line, not with a traceback for each line of the log."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name that logging calls)
        """Raise an error of the operating system, once, as a `RunFolderError`."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        logging.root.removeHandler(self)
        with writing(Path(self.baseFilename), SAFE):
            raise error


class ScreenLog(logging.StreamHandler):
    """Standard output as a log that a run can go on without: a reader that went away, or a full disk behind it.

    In ``main.py ... | head`` the end is silent, as that of other programs; any other error is one line.
    """

    def __init__(self, formatter: logging.Formatter | None = None) -> None:
        super().__init__(sys.stdout)
        self.setFormatter(formatter or logging.Formatter("%(message)s"))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name that logging calls)
        """Log no more to the screen after an error of the operating system."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        logging.root.removeHandler(self)
        logging.root.addHandler(logging.NullHandler())  # without any, logging makes one for standard error
        close_screen()
        if not isinstance(error, BrokenPipeError):
            print(
                f"warning: standard output cannot be written ({error.strerror}): from now on the log is only in the "
                "logging.log of each run",
                file=sys.stderr,
            )


def log_to_screen() -> None:
    """Log to standard output, before there is a run; characters that it cannot show are escaped."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # where the locale is C, an accent would else cost each line
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.basicConfig(level=logging.INFO, handlers=[ScreenLog()], force=True)


def close_screen() -> None:
    """Let standard output lead nowhere: Python would else complain at its end of what is left in the buffer."""
    if sys.stdout is None:  # closed by the shell, as in `>&-`
        return
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except io.UnsupportedOperation:  # it is no file, but something of another program's in this process
        pass


def log_to_run_dir(fabric: Fabric) -> None:
    """Log to screen and ``cfg.run_dir/logging.log`` as ``cfg.print`` says; further processes show warnings only.

    Raises:
        RunFolderError: the file cannot be written, now or later.
    """
    if not fabric.is_global_zero:
        logging.basicConfig(level=logging.WARNING, format=f"process {fabric.global_rank}: %(message)s", force=True)
        return
    with writing(Path(cfg.run_dir) / "logging.log", SAFE):
        set_printing()
        for handler in logging.root.handlers[:]:
            logging.root.removeHandler(handler)
            handler.close()
            logging.root.addHandler(_ours(handler))


def _ours(handler: logging.Handler) -> logging.Handler:
    """Return our handler in the place of GraphGym's."""
    if not isinstance(handler, logging.FileHandler):
        return ScreenLog(handler.formatter)
    ours = RunLog(handler.baseFilename)
    ours.setFormatter(handler.formatter)
    return ours
