"""Progress of long work: bars on a terminal; where there is none, a log line a minute in very long epochs."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sized
from functools import partial
from types import TracebackType

from tqdm import tqdm

from graphgps_kmip.common.environment import duration

log = logging.getLogger(__name__)
DELAY = 3.0  # seconds of work without a bar: what takes less would only flicker
REDRAW = 0.5  # seconds between two drawings of a bar
LINE = 60.0  # seconds between two lines of a log

# tqdm with the options that all bars share; `disable=None`: none where stderr is no terminal
terminal_bar = partial(tqdm, delay=DELAY, disable=None, leave=False, dynamic_ncols=True)


class BatchProgress:
    """Progress over the batches of one pass, with the loss and the time that is left.

    Args:
        title (str): what runs, such as ``epoch 3/200 train``.
        batches (object): the loader; its length is asked for only if the pass takes long.
        active (bool, optional): whether this process shows progress. (default: ``True``)
    """

    def __init__(self, title: str, batches: object, active: bool = True) -> None:
        self.title, self.batches = title, batches
        self.on_terminal, self.bar = sys.stderr.isatty(), None
        self.began, self.count = time.perf_counter(), 0
        self.due = self.began + (DELAY if self.on_terminal else LINE) if active else float("inf")

    def update(self, loss: Callable[[], float]) -> None:
        """Count one batch. ``loss`` is called only when something is shown: on a GPU it waits for the batches."""
        self.count += 1
        now = time.perf_counter()
        if now < self.due:
            return
        self.due = now + (REDRAW if self.on_terminal else LINE)
        total = len(self.batches) if isinstance(self.batches, Sized) else None
        left = total and (now - self.began) / self.count * max(0, total - self.count)
        text = f"loss {loss():.4g}" + (f", {duration(left)} left" if left else "")
        if self.on_terminal:
            if self.bar is None:  # a bar of unknown length is no bool
                look = "{desc} {bar:20} {n_fmt}/{total_fmt}{postfix}"
                self.bar = terminal_bar(desc=self.title, total=total, initial=self.count, delay=0, bar_format=look)
            self.bar.n = self.count
            self.bar.set_postfix_str(text)
        else:
            total_text = f" of {total:,}" if total else ""
            log.info("%s: batch %s%s, %s", self.title, f"{self.count:,}", total_text, text)

    def __enter__(self) -> BatchProgress:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.close()
