"""Progress reports of a run: stats.json, writers, and one progress bar or log lines with the measured ETA."""

from __future__ import annotations

import logging
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from graphgps_kmip.common.durations import duration
from graphgps_kmip.results.run_stats import append_stats, rounded
from graphgps_kmip.train.settings import RunState, TrainSettings
from graphgps_kmip.train.writers import Writer

log = logging.getLogger(__name__)


class Clock:
    """Seconds of the epochs of this session, those with an evaluation apart from those without."""

    def __init__(self, settings: TrainSettings) -> None:
        self.settings = settings
        self.seconds: dict[bool, list[float]] = {True: [], False: []}

    def add(self, epoch: int, seconds: float) -> None:
        """Note how long an epoch took, evaluation included."""
        self.seconds[self.settings.evaluates(epoch)].append(seconds)

    def per_epoch(self, evaluated: bool) -> float:
        """Return the median, which the first epoch (compilers, caches) does not move; of the other kind if need be."""
        return statistics.median(self.seconds[evaluated] or self.seconds[not evaluated])

    def eta(self, epoch: int) -> float:
        """Return the seconds left after `epoch`."""
        left = [self.settings.evaluates(later) for later in range(epoch + 1, self.settings.max_epoch)]
        return float(sum(self.per_epoch(kind) * left.count(kind) for kind in set(left)))


class Bar:
    """A bar over the epochs on a terminal; elsewhere a log line for each evaluated epoch."""

    def __init__(self, settings: TrainSettings, metric: str, done: int) -> None:
        self.settings = settings
        self.metric = metric
        self.bar = tqdm(
            total=settings.max_epoch,
            initial=done,
            bar_format="{bar:20} {n_fmt}/{total_fmt} {desc}",  # no {remaining}: tqdm does not know of evaluations
            disable=not sys.stderr.isatty(),
        )

    def show(self, epoch: int, loss: float, best: float | None, clock: Clock) -> None:
        """Show the state after an epoch."""
        chosen = "" if best is None else f", best {self.metric} {best:g}"
        pace = f"{clock.per_epoch(self.settings.evaluates(epoch)):.2f} s/epoch"
        line = f"{self.settings.name} loss {loss:.4g}{chosen}, {pace}{self._eta(epoch, clock)}".strip()
        if not self.bar.disable:
            self.bar.set_description_str(line, refresh=False)
            self.bar.update()
        elif self.settings.evaluates(epoch):
            log.info("epoch %d/%d %s", epoch + 1, self.settings.max_epoch, line)

    def _eta(self, epoch: int, clock: Clock) -> str:
        """Return the ETA, at least a second while epochs are left; nothing after the last one."""
        if epoch + 1 >= self.settings.max_epoch:
            return ""
        return f", ETA {duration(max(1.0, clock.eta(epoch)))}"

    def close(self) -> None:
        """Leave the bar as it is."""
        self.bar.close()


class Reporter:
    """Reports for the first process, to the writers too; in the others, which are not `active`, it only measures."""

    def __init__(
        self,
        run_dir: Path,
        settings: TrainSettings,
        metric: str,
        writers: Sequence[Writer] = (),
        done: int = 0,
        active: bool = True,
    ) -> None:
        self.run_dir = run_dir
        self.settings = settings
        self.writers = writers
        self.clock = Clock(settings)
        self.bar = Bar(settings, metric, done) if active else None

    def report(self, stats: dict[str, dict[str, Any]], state: RunState, seconds: float) -> None:
        """Report the statistics of one epoch by split, and the state after it."""
        self.clock.add(state.epoch, seconds)
        if self.bar is None:
            return
        left = self.clock.eta(state.epoch)
        eta = rounded({"eta": left, "eta_hours": left / 3600}, self.settings.round)
        for split, line in {**stats, "train": {**stats["train"], **eta}}.items():
            append_stats(self.run_dir, split, line)
            for writer in self.writers:
                writer.log(split, line, state.epoch)
        self.bar.show(state.epoch, stats["train"]["loss"], state.best.get("value"), self.clock)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self.bar is not None:
            self.bar.close()
