"""Training loop: epochs, evaluation, best epoch, checkpoints, and the end of a run by itself, a signal or an error."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from graphgps_kmip.common.progress import BatchProgress
from graphgps_kmip.common.signals import Stopped, StopSignals
from graphgps_kmip.errors import (
    CheckpointError,
    InputError,
    OutOfMemory,
    RunFolderError,
    TrainingDiverged,
    is_out_of_memory,
    lost_partner,
)
from graphgps_kmip.ops.host_copies import remember_batch
from graphgps_kmip.results.best_epoch import is_better
from graphgps_kmip.results.run_folder import SPLITS
from graphgps_kmip.results.run_record import rounded, write_record
from graphgps_kmip.task.losses import HALF
from graphgps_kmip.task.task import Task
from graphgps_kmip.train.checkpoint import Checkpointer
from graphgps_kmip.train.distributed import all_reduce, gather_rows, make_fabric, on_rank_zero, share_batch_norms
from graphgps_kmip.train.reporter import Reporter, Writer, closing
from graphgps_kmip.train.run_recording import closed_record, locked, open_record
from graphgps_kmip.train.settings import RunState, TrainSettings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

log = logging.getLogger(__name__)
# Reading a loss makes the host wait for CUDA, so there it is checked every so many batches and at the end of a pass.
CUDA_CHECK_PERIOD = 32


@dataclass(frozen=True)
class Session:
    """What every pass reads: model and optimizer as Fabric set them up, settings; without an optimizer it evaluates."""

    fabric: Fabric
    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    task: Task | None
    settings: TrainSettings
    stop: StopSignals
    num_params: int


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
            where it exists. With several processes each has `sharded = True` (see `distributed`).
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
    splits = _check_loaders(loaders, fabric.world_size, scheduler, task, settings.early_stop_patience)
    writers = writers if fabric.is_global_zero else ()
    with ExitStack() as stack:
        on_rank_zero(fabric, lambda: stack.enter_context(locked(run_dir)))
        stop = stack.enter_context(StopSignals(obey=fabric.is_global_zero))
        stack.enter_context(closing(writers))
        model = share_batch_norms(model)
        num_params = sum(parameter.numel() for parameter in model.parameters())
        session = Session(fabric, *fabric.setup(model, optimizer), task, settings, stop, num_params)
        checkpointer = Checkpointer(run_dir, settings, model, optimizer, scheduler, fabric)
        state = checkpointer.resume() if settings.auto_resume else RunState()
        earlier, clock = state.seconds, time.process_time if fabric.device.type == "cpu" else time.perf_counter
        record = on_rank_zero(fabric, lambda: open_record(run_dir, settings))
        reporter = Reporter(run_dir, settings, task.metric_best, writers, fabric.is_global_zero)
        with _save_last_epoch(checkpointer, stop):
            for epoch in range(state.epoch + 1, settings.max_epoch):
                if reason := _reason_to_end(state, settings):
                    log.info("%s: the training ends", reason)
                    checkpointer.write_latest()
                    break
                epoch_began, clock_began = time.perf_counter(), clock()
                stats = {"train": run_epoch(session, splits["train"], "train", epoch)}
                _check_parameters(session.model, epoch)
                new_best = False
                if settings.evaluates(epoch):
                    shared = SharedGraph(session.model, [splits[split] for split in splits if split != "train"])
                    new_best, value = epoch + 1 == settings.max_epoch, None  # without validation the last is the best
                    if "val" in splits:
                        stats["val"] = run_epoch(session, splits["val"], "val", epoch, shared)
                        state.val_loss, value = stats["val"]["loss"], stats["val"][task.metric_best]
                        new_best = is_better(value, state.best.get("value"), task.maximize)
                    if "test" in splits and (new_best or settings.eval_test == "every"):
                        stats["test"] = run_epoch(session, splits["test"], "test", epoch, shared)
                    if new_best:
                        state.best = {"epoch": epoch, "value": value, **stats}
                scheduler.step(*([state.val_loss] if isinstance(scheduler, ReduceLROnPlateau) else []))
                seconds = time.perf_counter() - epoch_began
                state.epoch, state.seconds = epoch, state.seconds + seconds
                state.compute_seconds += on_rank_zero(fabric, lambda began=clock_began: clock() - began)
                reporter.report(stats, state, seconds)
                checkpointer.keep(state, new_best)
        record = closed_record(record, session, state, earlier + time.perf_counter() - began)
        on_rank_zero(fabric, lambda: write_record(run_dir, record))
        if stop.signum:
            _exit(stop, "the run had just finished.")
    return record


def _reason_to_end(state: RunState, settings: TrainSettings) -> str:
    """Return why a training ends before its last epoch, or nothing."""
    if not settings.evaluates(state.epoch):
        return ""
    if 0 < settings.early_stop_patience <= state.epoch - state.best.get("epoch", state.epoch):
        return f"{settings.early_stop_patience} epochs without a better score"
    if 0 < settings.max_seconds <= state.compute_seconds:
        return f"optim.max_seconds {settings.max_seconds:g} are over"
    return ""


def run_epoch(
    session: Session, loader: Iterable, split: str, epoch: int, shared: SharedGraph | None = None
) -> dict[str, Any]:
    """Run the model over a split, with optimizer steps if it is "train", and return GraphGym's statistics of the pass.

    Raises:
        TrainingDiverged: a loss is NaN or infinite.
        OutOfMemory: a batch did not fit.
        Stopped: a signal came.
    """
    began = time.perf_counter()
    fabric, optimizer, task, settings = session.fabric, session.optimizer, session.task, session.settings
    training = split == "train" and optimizer is not None
    lr = optimizer.param_groups[0]["lr"] if optimizer else 0.0
    if optimizer and hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
    where = f"{split} epoch {epoch}" if optimizer else f"the evaluation of {split}"
    check_period = CUDA_CHECK_PERIOD if fabric.device.type == "cuda" else 1
    share = settings.batch_accumulation if settings.accumulation_mean else 1
    accumulator, count = MetricAccumulator(), 0
    session.model.train(training)
    title = f"epoch {epoch + 1}/{settings.max_epoch} {split}" if optimizer else split
    with torch.set_grad_enabled(training), BatchProgress(title, loader, fabric.is_global_zero) as progress:
        for count, batch in enumerate(_prepare_batches(session, loader, split, epoch, shared), start=1):
            with explain_errors(batch, f"{where}, batch {count - 1}"):
                pred, true = session.model(batch)
                if getattr(batch, "filler", False):
                    pred, true = pred[:0], true[:0]  # runs, counts nowhere
                total, weight = task.loss(pred, true, all_reduce)
                sums = all_reduce(torch.stack([total.detach(), weight.to(total)]))
                if training:
                    fabric.backward(total * (fabric.world_size / (sums[1] * share)))
                accumulator.add(sums, task.score(pred.detach()), true)
                del pred, total, weight  # before the next batch needs their memory
                if training and count % settings.batch_accumulation == 0:
                    _take_step(session)
            if count % check_period == 0:
                accumulator.check(where)
            progress.update(accumulator.recent_loss)
        accumulator.check(where)
        if training and count % settings.batch_accumulation != 0:
            _take_step(session)
    if not count:
        raise InputError(f"The {split} split has no batches; give it at least one sample (dataset.split).")
    summary = accumulator.summary(task, fabric.device)
    seconds = time.perf_counter() - began
    stats = {
        "epoch": epoch,
        "time_epoch": seconds,
        "loss": summary.pop("loss"),
        "lr": lr,
        "params": session.num_params,
        "time_iter": seconds / count,
        **summary,
    }
    return rounded(stats, settings.round)


def _prepare_batches(
    session: Session, loader: Iterable, split: str, epoch: int, shared: SharedGraph | None
) -> Iterator[Any]:
    session.stop.check()
    if shared is not None and (batch := shared.encoded(split)) is not None:
        yield batch
        return
    for loaded in loader:
        session.stop.check()
        batch = prepare(session, loaded, split, epoch)
        if shared is not None:
            shared.take(batch)
        yield batch


def prepare(session: Session, loaded: Any, split: str, epoch: int) -> Any:
    """Return the batch on its device, in the precision of the run, with `batch.split`, `batch.progress`, `batch.epoch`.

    The progress is ``epoch / (max_epoch - 1)``; 1, and no epoch, in a session that only evaluates.
    """
    # A shallow copy: a loader may yield the same object again, and the lines below set attributes.
    batch = session.fabric.to_device(copy.copy(loaded))
    remember_batch(batch, loaded)
    if session.settings.precision == "64-true":
        batch = batch.apply(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
    batch.split = split
    batch.progress = epoch / max(1, session.settings.max_epoch - 1) if session.optimizer else 1.0
    batch.epoch = epoch if session.optimizer else None
    return batch


def _take_step(session: Session) -> None:
    if session.settings.clip_grad_norm is not None:
        # Do not raise on non-finite gradients: the checks of loss and parameters report them with a better message.
        session.fabric.clip_gradients(
            session.model, session.optimizer, max_norm=session.settings.clip_grad_norm, error_if_nonfinite=False
        )
    session.optimizer.step()
    session.optimizer.zero_grad()


@contextmanager
def explain_errors(batch: Any, where: str) -> Iterator[None]:
    """Turn a lack of memory, and what a model raises on NaN (the k-MIP search does), into one line."""
    try:
        yield
    except FloatingPointError as error:
        raise TrainingDiverged(f"The model met NaN or infinite values in {where}: {error}.") from error
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        ptr = getattr(batch, "ptr", None)
        size = f"1 graph of {getattr(batch, 'num_nodes', 'unknown')} nodes"
        if ptr is not None:
            size = f"{len(ptr) - 1} graphs, the largest of {int(ptr.diff().max())} nodes"
        raise OutOfMemory(
            f"Out of memory on a batch of {size}. Lower train.batch_size and raise optim.batch_accumulation by the "
            "same factor, set share.gradient_checkpointing True, or lower gt.dim_hidden. "
            f"({str(error).splitlines()[0] if str(error) else 'MemoryError'})"
        ) from error


class MetricAccumulator:
    """Collects (total, weight) of each global batch, and this process's scores and labels, without waiting for CUDA."""

    def __init__(self) -> None:
        self.sums: list[Tensor] = []  # (2,) each: total and weight of the loss over all processes
        self.scores: list[Tensor] = []
        self.labels: list[Tensor] = []
        self._checked = 0

    def add(self, sums: Tensor, score: Tensor, true: Tensor) -> None:
        """Add one batch: the reduced `(total, weight)`, and the local score and labels."""
        self.sums.append(sums)
        self.scores.append(_to_cpu(score))
        self.labels.append(_to_cpu(true))

    def check(self, where: str) -> None:
        """Raise `TrainingDiverged`, with the first such batch of `where`, if a loss added since is not finite."""
        if self._checked == len(self.sums):
            return
        for number, loss in enumerate(_losses(self.sums[self._checked :]).tolist(), start=self._checked):
            if not math.isfinite(loss):
                raise TrainingDiverged(f"The loss is {loss} in {where}, batch {number}.")
        self._checked = len(self.sums)

    def recent_loss(self) -> float:
        """Return the mean loss of the last ten batches."""
        return float(_losses(self.sums[-10:]).mean())

    def summary(self, task: Task, device: torch.device) -> dict[str, float]:
        """Return the loss and the metrics of the whole split.

        The loss is the mean over global batches, weighted by their rows, as in GraphGym; metrics see all rows at once.
        """
        losses = _losses(self.sums)  # first: its copy to the CPU waits for the copies of `_to_cpu`
        rows = all_reduce(torch.tensor([len(true) for true in self.labels], device=device)).cpu().double()
        score = gather_rows(torch.cat(self.scores), device)
        true = gather_rows(torch.cat(self.labels), device)
        metrics = {name: float(metric(score, true)) for name, metric in task.metrics.items()}
        return {"loss": float((losses * rows).sum() / rows.sum()), **metrics}


def _losses(sums: list[Tensor]) -> Tensor:
    total, weight = torch.stack(sums).cpu().double().unbind(dim=1)
    return total / weight


def _to_cpu(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype in HALF else tensor).to("cpu", non_blocking=True)


class SharedGraph:
    """The batch that evaluations of several splits share, where these are nodes of one graph: its layers run once.

    Args:
        model: shares if its ``reads_encoded`` says that a batch with ``encoded`` features goes to its head alone.
        loaders: of the splits; they share if they have the same ``single_graph``.
    """

    def __init__(self, model: nn.Module, loaders: Iterable[Iterable]) -> None:
        graphs = [getattr(loader, "single_graph", None) for loader in loaders]
        same = bool(graphs) and graphs[0] is not None and all(graph is graphs[0] for graph in graphs)
        self.shares, self._batch = same and getattr(model, "reads_encoded", False), None

    def take(self, batch: Any) -> None:
        """Keep a batch that is about to go through the model, which then leaves its node features in the list."""
        if self.shares:
            batch.encoded = []
            self._batch = batch

    def encoded(self, split: str) -> Any | None:
        """Return the batch for another split, None as long as none has left its features."""
        if self._batch is None or not self._batch.encoded:
            return None
        batch = copy.copy(self._batch)
        batch.split = split
        return batch


def _check_parameters(model: nn.Module, epoch: int) -> None:
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise TrainingDiverged(f"The parameter {name} is not finite after the last batch of train epoch {epoch}.")


@contextmanager
def _save_last_epoch(checkpointer: Checkpointer, stop: StopSignals) -> Iterator[None]:
    """Save the last completed epoch when a run breaks off, and say from where it can go on."""
    try:
        yield
    except TrainingDiverged as error:
        raise TrainingDiverged(f"{error} {checkpointer.describe_newest()}") from error
    except RunFolderError as error:
        with suppress(CheckpointError, RunFolderError):  # the disk may take nothing at all
            checkpointer.write_latest()
        raise RunFolderError(f"{error} {checkpointer.describe_newest()}") from error
    except (Stopped, RuntimeError) as error:
        # After a signal loader workers and other processes break off with RuntimeErrors; where another process was
        # killed, torchrun may start all of them again.
        if stop.signum or lost_partner(error):
            checkpointer.write_latest()
        if stop.signum:
            _exit(stop, f"stopped; {checkpointer.describe_newest()}")
        raise


def _exit(stop: StopSignals, message: str) -> None:
    if stop.obey:
        log.warning("Signal %d: %s", stop.signum, message)
    raise SystemExit(stop.exit_code)


def _check_loaders(
    loaders: Sequence[Iterable | None], processes: int, scheduler: LRScheduler, task: Task, patience: int
) -> dict[str, Iterable]:
    splits = {split: loader for split, loader in zip(SPLITS, loaders, strict=False) if loader is not None}
    for split, loader in splits.items():
        if processes > 1 and not getattr(loader, "sharded", False):
            raise InputError(
                f"The {split} loader gives every one of the {processes} processes all samples; use a loader with "
                "`sharded = True`, which gives each its share, or devices 1."
            )
    if task.metric_best not in (*task.metrics, "loss"):
        raise InputError(
            f"metric_best is {task.metric_best!r}; this task has {', '.join(task.metrics)} and loss; choose one."
        )
    plateau = isinstance(scheduler, ReduceLROnPlateau)
    if "val" not in splits and (plateau or patience):
        key = "optim.scheduler reduce_on_plateau" if plateau else "train.early_stop_patience"
        fix = "use another scheduler" if plateau else "set it to 0"
        raise InputError(f"{key} needs a validation split, and there is none; {fix}.")
    return splits
