"""Ctrl-C and its like, while other processes do the work."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# `timeout` signals a process and then its whole group: the second signal is an echo, not an order.
ECHO_SECONDS = 1.0


class Interrupts:
    """Context manager that notes signals; `signum` is the first one, 0 before it.

    Outside the main thread, where Python allows no handlers, nothing is installed; what is ignored (nohup) stays so.
    """

    def __init__(self) -> None:
        self.signum = 0
        self._noted_at = 0.0
        self._order = 0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            for signum in SIGNALS:
                if signal.getsignal(signum) is not signal.SIG_IGN:
                    self._previous[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Put the earlier handlers back."""
        for signum, handler in self._previous.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)

    def order(self) -> int:
        """Return, once, what to send on: SIGINT after the first signal, SIGKILL after a further one; else 0."""
        order, self._order = self._order, 0
        return order

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        if not self.signum:
            self.signum, self._noted_at, self._order = signum, time.monotonic(), signal.SIGINT
        elif time.monotonic() - self._noted_at > ECHO_SECONDS:
            self._order = signal.SIGKILL
