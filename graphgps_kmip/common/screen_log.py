"""Logs that an error of the operating system ends; that of standard output, which a run can go on without."""

from __future__ import annotations

import io
import logging
import os
import sys
from abc import ABC, abstractmethod


class LogUntilError(ABC, logging.Handler):
    """Base of logs that end at the first error of the operating system; `ended` says what happens then."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name that logging calls)
        """Remove this log after an error of the operating system; any other is handled as usual."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        logging.root.removeHandler(self)
        self.ended(error)

    @abstractmethod
    def ended(self, error: OSError) -> None:
        """Do what is to be done about `error`."""


class ScreenLog(LogUntilError, logging.StreamHandler):
    """Standard output as a log that a run can go on without: a reader that went away, or a full disk behind it.

    In ``main.py ... | head`` the end is silent, as that of other programs; any other error is one line.
    """

    def __init__(self, formatter: logging.Formatter | None = None) -> None:
        super().__init__(sys.stdout)
        self.setFormatter(formatter or logging.Formatter("%(message)s"))

    def ended(self, error: OSError) -> None:
        """Log no more to the screen."""
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
