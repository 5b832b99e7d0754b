"""Signals (Ctrl-C, SIGTERM, SIGHUP) that trainings and job runners note; a log on the screen that ``| head`` ends."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
import time
from types import FrameType

# `timeout` and some schedulers signal a process and then its whole group: the second signal is an echo, not an order.
ECHO_SECONDS = 1.0


class Stopped(Exception):
    """The run was asked to stop; caught in `loop.train`."""


class StopSignals:
    """Context manager that notes the first signal in `signum`; 0 before it.

    A training reads the note at `check` between two batches, and a second signal ends the process at once; a process
    whose children do the work reads what to send on to them at `order`. Of several processes only the first one obeys:
    the others answer its collectives until it is gone. Outside the main thread nothing is installed.

    Args:
        obey (bool, optional): whether `check` raises in this process. (default: ``True``)
        forward (bool, optional): the children do the work: SIGHUP is noted too, ignored signals (nohup) stay ignored,
            and no signal ends this process. (default: ``False``)
    """

    def __init__(self, obey: bool = True, forward: bool = False) -> None:
        self.obey = obey
        self.forward = forward
        self.signum = 0
        self._noted_at = 0.0
        self._order = self._sent = 0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if self.forward else [])):
                if not self.forward or signal.getsignal(signum) is not signal.SIG_IGN:
                    self._previous[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)

    def check(self) -> None:
        """Raise `Stopped` if a signal came."""
        if self.signum and self.obey:
            raise Stopped

    def order(self) -> int:
        """Return, once, what to send to the children: SIGTERM after the first signal, SIGKILL after a further one."""
        order = self._order  # the handler may run between any two steps: it alone writes this one
        if order == self._sent:
            return 0
        self._sent = order
        return order

    @property
    def exit_code(self) -> int:
        """130 after SIGINT, 143 after SIGTERM."""
        return 128 + self.signum

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        if not self.signum:
            self.signum, self._noted_at, self._order = signum, time.monotonic(), signal.SIGTERM
        elif time.monotonic() - self._noted_at > ECHO_SECONDS:
            if self.forward:
                self._order = signal.SIGKILL
            else:
                signal.signal(signum, signal.SIG_DFL)
                os.kill(os.getpid(), signum)


class ScreenLog(logging.StreamHandler):
    """Standard output as a log, which ends silently where nobody reads it any more, as in ``main.py ... | head``."""

    def __init__(self, formatter: logging.Formatter | None = None) -> None:
        super().__init__(sys.stdout)
        self.setFormatter(formatter or logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; a bar that is shown moves below it."""
        from tqdm import tqdm  # ``--help`` logs nothing

        with tqdm.external_write_mode(sys.stdout):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name that logging calls)
        """Log no more to the screen after an error of the operating system."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
            return
        logging.root.removeHandler(self)
        logging.root.addHandler(logging.NullHandler())  # without any, logging makes one for standard error
        close_screen()


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
