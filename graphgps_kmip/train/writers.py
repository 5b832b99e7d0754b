"""Writers of statistics: TensorBoard, Weights & Biases, or any object with the two methods of `Writer`."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from graphgps_kmip.errors import InputError
from graphgps_kmip.results.run_folder import writing


class Writer(Protocol):
    """Receives the statistics that are also written to stats.json."""

    def log(self, split: str, stats: Mapping[str, Any], epoch: int) -> None:
        """Receive the statistics of one split after one epoch."""

    def close(self, exit_code: int = 0) -> None:
        """Finish; `exit_code` is not 0 if the run failed or was stopped."""


class MissingWriter(ValueError):
    """The package that a writer needs is not installed."""


class TensorBoardWriter:
    """Scalars `<split>/<metric>` as TensorBoard events.

    Args:
        log_dir: folder of the event files, such as `<run_dir>/tensorboard`.

    Raises:
        MissingWriter: tensorboard is not installed.
    """

    def __init__(self, log_dir: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingWriter(
                "tensorboard_each_run is True, but tensorboard is not installed: pip install tensorboard"
            ) from error
        self._make = SummaryWriter
        self._log_dir = str(log_dir)
        self._writer: Any = None

    def log(self, split: str, stats: Mapping[str, Any], epoch: int) -> None:
        """Write every number as a scalar at step `epoch`."""
        with writing(Path(self._log_dir), "stats.json has the same statistics."):
            if self._writer is None:  # only now is it known from which epoch a resumed run repeats what was written
                _report_once()
                self._writer = self._make(self._log_dir, purge_step=epoch)
            try:
                for name, value in _numbers(stats).items():
                    self._writer.add_scalar(f"{split}/{name}", value, epoch)
            except OSError:
                self._writer = None  # it would raise the same error when it is closed
                raise

    def close(self, exit_code: int = 0) -> None:  # noqa: ARG002  (part of the protocol)
        """Flush and close the file."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with writing(Path(self._log_dir), "stats.json has the same statistics."):
                writer.close()


def _report_once() -> None:
    """Keep TensorBoard's thread from printing a traceback of an error of the disk, which the next call raises again."""
    before = threading.excepthook
    if getattr(before, "reports_once", False):
        return

    def hook(args: threading.ExceptHookArgs) -> None:
        frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(args.exc_traceback)]
        of_tensorboard = any(name.startswith("tensorboard.") for name in frames)
        if not (of_tensorboard and issubclass(args.exc_type, OSError)):
            before(args)

    hook.reports_once = True
    threading.excepthook = hook


class WandbWriter:
    """Scalars `<split>/<metric>` as a run of Weights & Biases.

    Args:
        entity: user or team (`wandb.entity`).
        project: `wandb.project`.
        name: of the run (`wandb.name`).
        config: settings to show with the run.
        run_id: the same for a run and its resumption, so that wandb goes on with it.

    Raises:
        MissingWriter: wandb is not installed.
        ValueError: it is, and does not start a run.
    """

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
