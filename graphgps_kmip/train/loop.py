"""Training loop: epochs, evaluation, best epoch, checkpoints, and the end of a run by itself, a signal or an error."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from graphgps_kmip.common.signals import Stopped, StopSignals
from graphgps_kmip.errors import CheckpointError, InputError, RunFolderError, TrainingDiverged, is_left_alone
from graphgps_kmip.results.run_folder import SPLITS
from graphgps_kmip.results.run_record import write_record
from graphgps_kmip.task.task import Task
from graphgps_kmip.train.checkpointer import Checkpointer
from graphgps_kmip.train.distributed import make_fabric, on_rank_zero, share_batch_norms
from graphgps_kmip.train.epoch import Session, SharedGraph, run_epoch
from graphgps_kmip.train.reporter import Reporter
from graphgps_kmip.train.run_recording import check_folder, closed_record, locked, open_record
from graphgps_kmip.train.settings import RunState, TrainSettings, is_new_best, stops_early
from graphgps_kmip.train.writers import Writer, closing

if TYPE_CHECKING:
    from lightning_fabric import Fabric

log = logging.getLogger(__name__)


def train(
    model: nn.Module,
    loaders: Sequence[Iterable | None],
    optimizer: torch.optim.Optimizer,
    scheduler: LRScheduler,
    task: Task,
    settings: TrainSettings,
    run_dir: str | Path,
    fabric: Fabric | None = None,
    writers: Sequence[Writer] = (),
) -> dict[str, Any]:
    """Train a model, or go on with it, and return the content of record.json.

    Args:
        model: `model(batch) -> (pred, true)`; finds `batch.split` and `batch.progress` in [0, 1].
        loaders: of train, val and test; the last ones may be None or left out. `loader.set_epoch(epoch)` is called
            where it exists. One that shuffles by the global generator instead resumes exactly as well, unless it keeps
            its workers alive between epochs. With several processes each has `sharded = True` (see `distributed`).
        optimizer: of the model's parameters.
        scheduler: steps once an epoch; reduce-on-plateau on the last evaluated validation loss.
        task: loss, score, metrics and which of them selects the epoch.
        settings: see `TrainSettings`.
        run_dir: takes `{train,val,test}/stats.json`, `ckpt/` and `record.json`; made ready by `prepare_run_dir`.
        fabric: a launched Fabric; None: one process on the best device.
        writers: get the same statistics as stats.json, in the first process.

    Raises:
        ValueError: loaders, task and scheduler do not fit together.
        RunError: the run cannot go on; one line with the reason and how to fix it.
        SystemExit: 130 after Ctrl-C, 143 after SIGTERM, with the last completed epoch saved.
    """
    began = time.perf_counter()
    run_dir = Path(run_dir)
    fabric = fabric or make_fabric(precision=settings.precision)
    named = _name_loaders(loaders, fabric.world_size)
    _check_fit(named, scheduler, task, settings.early_stop_patience)
    writers = writers if fabric.is_global_zero else ()
    with ExitStack() as stack:
        on_rank_zero(fabric, lambda: stack.enter_context(locked(run_dir)))
        stop = stack.enter_context(StopSignals(obey=fabric.is_global_zero))
        stack.enter_context(closing(writers))
        model = share_batch_norms(model)
        num_params = sum(parameter.numel() for parameter in model.parameters())
        session = Session(fabric, *fabric.setup(model, optimizer), task, settings, stop, num_params)
        checkpointer = Checkpointer(run_dir, settings, model, optimizer, scheduler, named.keys(), fabric)
        on_rank_zero(fabric, lambda: check_folder(run_dir, settings))
        state = checkpointer.resume() if settings.auto_resume else RunState()
        earlier = state.seconds
        record = on_rank_zero(fabric, lambda: open_record(run_dir, settings))
        reporter = Reporter(run_dir, settings, task.metric_best, writers, state.epoch + 1, fabric.is_global_zero)
        stack.callback(reporter.close)
        try:
            _fit(session, named, scheduler, state, checkpointer, reporter)
        except TrainingDiverged as error:
            raise TrainingDiverged(f"{error} {_last_good(checkpointer)}") from error
        except RunFolderError as error:  # a full disk: what can be saved of the epochs before is saved
            raise RunFolderError(f"{error} {_saved(checkpointer)}") from error
        except (Stopped, RuntimeError) as error:
            if stop.signum:  # after a signal loader workers and other processes break off with RuntimeErrors
                checkpointer.write_latest()
                _exit(stop, f"stopped; {_last_good(checkpointer)}")
            if is_left_alone(error):  # another process was killed, and torchrun may start all of them again
                checkpointer.write_latest()
            raise
        record = closed_record(record, session, state, earlier + time.perf_counter() - began)
        on_rank_zero(fabric, lambda: write_record(run_dir, record))
        if stop.signum:
            _exit(stop, "the run had just finished.")
    return record


def _fit(
    session: Session,
    loaders: dict[str, Iterable],
    scheduler: LRScheduler,
    state: RunState,
    checkpointer: Checkpointer,
    reporter: Reporter,
) -> None:
    settings = session.settings
    for epoch in range(state.epoch + 1, settings.max_epoch):
        if stops_early(state, settings):
            log.info("%d epochs without a better score: the training ends", settings.early_stop_patience)
            checkpointer.write_latest()
            break
        began = time.perf_counter()
        stats = {"train": run_epoch(session, loaders["train"], "train", epoch)}
        _check_parameters(session, epoch)
        new_best = settings.evaluates(epoch) and _evaluate(session, loaders, state, stats)
        if isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step(state.val_loss)
        else:
            scheduler.step()
        seconds = time.perf_counter() - began
        state.epoch = epoch
        state.seconds += seconds
        reporter.report(stats, state, seconds)
        checkpointer.keep(state, new_best)


def _evaluate(session: Session, loaders: dict[str, Iterable], state: RunState, stats: dict[str, dict]) -> bool:
    """Add the statistics of val, and of test where it is due; note and return whether this is the best epoch so far."""
    epoch = stats["train"]["epoch"]
    shared = SharedGraph(session.model, [loader for split, loader in loaders.items() if split != "train"])
    if "val" in loaders:
        stats["val"] = run_epoch(session, loaders["val"], "val", epoch, shared)
        state.val_loss = stats["val"]["loss"]
    last = epoch + 1 == session.settings.max_epoch
    new_best = is_new_best(state, stats.get("val"), session.task, last)
    if "test" in loaders and (new_best or session.settings.eval_test == "every"):
        stats["test"] = run_epoch(session, loaders["test"], "test", epoch, shared)
    if new_best:
        value = stats["val"][session.task.metric_best] if "val" in stats else None
        state.best = {"epoch": epoch, "value": value, **stats}
    return new_best


def _check_parameters(session: Session, epoch: int) -> None:
    """Keep a gradient that was not finite in the last step out of the checkpoint."""
    for name, parameter in session.model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise TrainingDiverged(f"The parameter {name} is not finite after the last batch of train epoch {epoch}.")


def _last_good(checkpointer: Checkpointer) -> str:
    path = checkpointer.newest()
    if path is None:
        return "no checkpoint was written."
    return f"the last good checkpoint is {path}; train.auto_resume True goes on from it."


def _saved(checkpointer: Checkpointer) -> str:
    """Try once more to save the last completed epoch, and say from where the run can go on."""
    try:
        checkpointer.write_latest()
    except (CheckpointError, RunFolderError):  # the disk takes nothing at all
        log.debug("the last epoch could not be saved", exc_info=True)
    return _last_good(checkpointer)


def _exit(stop: StopSignals, message: str) -> None:
    if stop.obey:
        log.warning("Signal %d: %s", stop.signum, message)
    raise SystemExit(stop.exit_code)


def _name_loaders(loaders: Sequence[Iterable | None], processes: int) -> dict[str, Iterable]:
    if not 1 <= len(loaders) <= len(SPLITS) or loaders[0] is None:
        raise InputError(f"train() got {len(loaders)} loaders; it needs train first, then val and test or None.")
    named = {split: loader for split, loader in zip(SPLITS, loaders, strict=False) if loader is not None}
    for split, loader in named.items():
        if processes > 1 and not getattr(loader, "sharded", False):
            raise InputError(
                f"The {split} loader gives every one of the {processes} processes all samples; use a loader with "
                "`sharded = True`, which gives each its share, or devices 1."
            )
    return named


def _check_fit(loaders: dict[str, Iterable], scheduler: LRScheduler, task: Task, patience: int) -> None:
    if task.metric_best not in (*task.metrics, "loss"):
        raise InputError(
            f"metric_best is {task.metric_best!r}; this task has {', '.join(task.metrics)} and loss; choose one."
        )
    if isinstance(scheduler, ReduceLROnPlateau) and "val" not in loaders:
        raise InputError(
            "optim.scheduler reduce_on_plateau needs a validation split, and there is none; use another scheduler."
        )
    if patience and "val" not in loaders:
        raise InputError("train.early_stop_patience needs a validation split, and there is none; set it to 0.")
