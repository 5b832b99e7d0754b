"""Where the statistics of an epoch go: files, writers, the progress bar."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphgps_kmip.results.run_stats import append_stats, rounded
from graphgps_kmip.train.progress import Bar, Clock
from graphgps_kmip.train.settings import TrainSettings
from graphgps_kmip.train.state import RunState
from graphgps_kmip.train.writers import Writer


class Reporter:
    """Reports for the first process; in the others it only measures.

    Args:
        run_dir: the run's folder.
        settings: name, number of epochs, digits.
        metric: the name of the selecting metric.
        writers: where else to report.
        done: epochs completed before.
        active: whether this process reports.
    """

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
        """Report the statistics of one epoch by split, and what `state` says after it."""
        self.clock.add(state.epoch, seconds)
        if self.bar is None:
            return
        to_go = self.clock.to_go(state.epoch)
        eta = rounded({"eta": to_go, "eta_hours": to_go / 3600}, self.settings.round)
        for split, line in {**stats, "train": {**stats["train"], **eta}}.items():
            append_stats(self.run_dir, split, line)
            for writer in self.writers:
                writer.log(split, line, state.epoch)
        self.bar.show(state.epoch, stats["train"]["loss"], state.best.get("value"), self.clock)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self.bar is not None:
            self.bar.close()
