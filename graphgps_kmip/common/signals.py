"""Ctrl-C, SIGTERM and SIGHUP: signal handlers that take a note, for the loop of a training or of a job runner."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

# `timeout` and some schedulers signal a process and then its whole group: the second signal is an echo, not an order.
ECHO_SECONDS = 1.0


class Stopped(Exception):
    """The run was asked to stop; caught in `loop.train`."""


class StopSignals:
    """Context manager that notes the first signal in `signum`; 0 before it.

    A handler that raised could break off an update or a file half way; this one only takes a note. A training reads it
    at `check` between two batches, and a second signal ends the process at once. A process whose children do the work
    reads what to send on to them at `order`. Over several processes only the first one obeys: the others go on
    answering its collectives until it is gone. Outside the main thread, where Python allows no handlers, nothing is
    installed.

    Args:
        obey (bool, optional): whether `check` raises in this process. (default: ``True``)
        forward (bool, optional): the children do the work: SIGHUP is noted too, a signal that is ignored (nohup) stays
            ignored, and no signal ends this process. (default: ``False``)
    """

    def __init__(self, obey: bool = True, forward: bool = False) -> None:
        self.obey = obey
        self.forward = forward
        self.signum = 0
        self._noted_at = 0.0
        self._order = self._sent = 0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if self.forward else [])):
                if not self.forward or signal.getsignal(signum) is not signal.SIG_IGN:
                    self._previous[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Put the earlier handlers back."""
        for signum, handler in self._previous.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)

    def check(self) -> None:
        """Raise `Stopped` if a signal came."""
        if self.signum and self.obey:
            raise Stopped

    def order(self) -> int:
        """Return, once, what to send to the children: SIGINT after the first signal, SIGKILL after a further one."""
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
            self.signum, self._noted_at, self._order = signum, time.monotonic(), signal.SIGINT
        elif time.monotonic() - self._noted_at > ECHO_SECONDS:
            if self.forward:
                self._order = signal.SIGKILL
            else:
                signal.signal(signum, signal.SIG_DFL)
                os.kill(os.getpid(), signum)
