"""Progress reports of a run: stats.json, TensorBoard, Weights & Biases, a log line for each epoch with the ETA."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from graphgps_kmip.common.environment import duration
from graphgps_kmip.common.progress import DELAY
from graphgps_kmip.errors import InputError
from graphgps_kmip.results.run_record import append_stats, rounded
from graphgps_kmip.train.settings import RunState, TrainSettings

log = logging.getLogger(__name__)


class Reporter:
    """Reports of the first process; the others have none that is `active`.

    There is a log line for each epoch that is evaluated or long. The ETA has medians of epochs with and without an
    evaluation. `metric` selects the epoch.
    """

    def __init__(
        self,
        run_dir: Path,
        settings: TrainSettings,
        metric: str,
        writers: Sequence[Writer] = (),
        active: bool = True,
    ) -> None:
        self.run_dir, self.settings, self.metric, self.writers, self.active = run_dir, settings, metric, writers, active
        self.seconds: dict[bool, list[float]] = {True: [], False: []}  # of epochs with and without an evaluation

    def report(self, stats: Mapping[str, Mapping[str, Any]], state: RunState, seconds: float) -> None:
        """Report the statistics of one epoch by split, and the state after it."""
        if not self.active:
            return
        epoch, settings = state.epoch, self.settings
        self.seconds[settings.evaluates(epoch)].append(seconds)
        left = [settings.evaluates(later) for later in range(epoch + 1, settings.max_epoch)]
        seconds_left = float(sum(self._median(evaluated) * left.count(evaluated) for evaluated in set(left)))
        if settings.max_seconds > 0:  # of the processor, with several threads or beside other work not of the clock
            compute_left = max(0.0, settings.max_seconds - state.compute_seconds)
            seconds_left = min(seconds_left, compute_left * state.seconds / state.compute_seconds)
        eta = rounded({"eta": seconds_left, "eta_hours": seconds_left / 3600}, settings.round)
        for split, line in {**stats, "train": {**stats["train"], **eta}}.items():
            append_stats(self.run_dir, split, line)
            for writer in self.writers:
                writer.log(split, line, epoch)
        best = state.best.get("value")
        text = f"{settings.name} loss {stats['train']['loss']:.4g}"
        text += "" if best is None else f", best {self.metric} {best:g}"
        text += f", {self._median(settings.evaluates(epoch)):.2f} s/epoch"
        text += f", ETA {duration(max(1.0, seconds_left))}" if left else ""
        if settings.evaluates(epoch) or seconds > DELAY:
            log.info("epoch %d/%d %s", epoch + 1, settings.max_epoch, text.strip())

    def _median(self, evaluated: bool) -> float:
        return statistics.median(self.seconds[evaluated] or self.seconds[not evaluated])


class Writer(Protocol):
    """Receives the statistics that are also written to stats.json."""

    def log(self, split: str, stats: Mapping[str, Any], epoch: int) -> None:
        """Receive the statistics of one split after one epoch."""

    def close(self, exit_code: int = 0) -> None:
        """Finish; `exit_code` is not 0 if the run failed or was stopped."""


class MissingWriter(ValueError):
    """The package that a writer needs is not installed."""


class TensorBoardWriter:
    """Scalars `<split>/<metric>` as TensorBoard events in `log_dir`; raises `MissingWriter` without tensorboard."""

    def __init__(self, log_dir: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingWriter(
                "tensorboard_each_run is True, but tensorboard is not installed: pip install tensorboard"
            ) from error
        self._make, self._log_dir = SummaryWriter, Path(log_dir)
        self._writer: Any = None

    def log(self, split: str, stats: Mapping[str, Any], epoch: int) -> None:
        """Write every number as a scalar at step `epoch`."""
        if self._writer is None:  # only now is it known from which epoch a resumed run repeats what was written
            self._writer = self._make(str(self._log_dir), purge_step=epoch)
        for name, value in _numbers(stats).items():
            self._writer.add_scalar(f"{split}/{name}", value, epoch)

    def close(self, exit_code: int = 0) -> None:  # noqa: ARG002  (part of the protocol)
        """Flush and close the file."""
        if self._writer is not None:
            self._writer.close()


class WandbWriter:
    """Scalars `<split>/<metric>` as a run of Weights & Biases; raises `MissingWriter` without wandb."""

    def __init__(
        self,
        entity: str = "",
        project: str = "",
        name: str = "",
        config: Mapping[str, Any] | None = None,
        run_id: str | None = None,
    ) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingWriter("wandb.use is True, but wandb is not installed: pip install wandb") from error
        settings = {"entity": entity or None, "project": project or None, "name": name or None}
        try:
            self._run = wandb.init(**settings, config=dict(config or {}), id=run_id, resume="allow")
        except wandb.Error as error:
            raise InputError(
                f"wandb.use is True, but wandb does not start ({error}): `wandb login`, wandb.entity of your own, or "
                "wandb.use False"
            ) from error

    def log(self, split: str, stats: Mapping[str, Any], epoch: int) -> None:
        """Send every number at step `epoch`."""
        self._run.log({f"{split}/{name}": value for name, value in _numbers(stats).items()}, step=epoch)

    def close(self, exit_code: int = 0) -> None:
        """Finish the run, marked as failed if `exit_code` is not 0."""
        self._run.finish(exit_code=exit_code)


@contextmanager
def closing(writers: Sequence[Writer]) -> Iterator[None]:
    """Close the writers at the end of the block, with the code the process is about to exit with."""
    exit_code = 1
    try:
        yield
        exit_code = 0
    except SystemExit as stop:
        exit_code = stop.code
        raise
    finally:
        for writer in writers:
            writer.close(exit_code)


def _numbers(stats: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in stats.items() if name != "epoch" and isinstance(value, int | float)}
