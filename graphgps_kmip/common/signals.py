"""Ctrl-C and SIGTERM: noted at once, obeyed between two batches."""

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
    """Context manager that notes the first SIGINT or SIGTERM in `signum`; the second one kills at once.

    A handler that raised could break off an update or a file half way; this one only takes a note, which the loop
    reads at `check`. Over several processes only the first one obeys: the others go on answering its collectives until
    it is gone. Outside the main thread, where Python allows no handlers, nothing is installed.

    Args:
        obey: whether `check` raises in this process.
    """

    def __init__(self, obey: bool = True) -> None:
        self.obey = obey
        self.signum = 0
        self._noted_at = 0.0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
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

    @property
    def exit_code(self) -> int:
        """130 after SIGINT, 143 after SIGTERM."""
        return 128 + self.signum

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        if not self.signum:
            self.signum, self._noted_at = signum, time.monotonic()
        elif time.monotonic() - self._noted_at > ECHO_SECONDS:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
