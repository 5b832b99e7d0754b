"""One pass over one split: training or evaluation."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from graphgps_kmip.common.signals import StopSignals
from graphgps_kmip.errors import InputError, TrainingDiverged
from graphgps_kmip.results.run_stats import rounded
from graphgps_kmip.task.task import Task
from graphgps_kmip.train.distributed import all_reduce
from graphgps_kmip.train.metric_accumulator import Tally
from graphgps_kmip.train.out_of_memory import explain_out_of_memory
from graphgps_kmip.train.settings import TrainSettings

# Reading a loss makes the host wait for CUDA, so there it is looked at every so many batches and at the end of a pass.
CUDA_CHECK_PERIOD = 32


@dataclass(frozen=True)
class Session:
    """What every pass works with: the model and optimizer as Fabric set them up, and what steers them."""

    fabric: Fabric
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    task: Task
    settings: TrainSettings
    stop: StopSignals
    num_params: int


def run_epoch(session: Session, loader: Iterable, split: str, epoch: int) -> dict[str, Any]:
    """Run the model over a split, with steps if it is "train", and return GraphGym's statistics of the pass.

    Each batch gets `batch.split` and `batch.progress = epoch / (max_epoch - 1)`. Seconds include the metrics.

    Raises:
        TrainingDiverged: a loss is NaN or infinite.
        OutOfMemory: a batch did not fit.
        Stopped: a signal came.
    """
    began = time.perf_counter()
    lr = session.optimizer.param_groups[0]["lr"]
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
    session.model.train(split == "train")
    with torch.set_grad_enabled(split == "train"):
        tally = _run_batches(session, loader, split, epoch)
    summary = tally.summary(session.task, session.fabric.device)
    seconds = time.perf_counter() - began
    stats = {
        "epoch": epoch,
        "time_epoch": seconds,
        "loss": summary.pop("loss"),
        "lr": lr,
        "params": session.num_params,
        "time_iter": seconds / len(tally.sums),
        **summary,
    }
    return rounded(stats, session.settings.round)


def _run_batches(session: Session, loader: Iterable, split: str, epoch: int) -> Tally:
    tally = Tally()
    where = f"{split} epoch {epoch}"
    number = -1
    check_period = CUDA_CHECK_PERIOD if session.fabric.device.type == "cuda" else 1
    for number, loaded in enumerate(loader):
        session.stop.check()
        batch = prepare(session, loaded, split, epoch)
        with explain_out_of_memory(batch), explain_not_finite(f"{where}, batch {number}"):
            run_batch(session, batch, tally)
            if split == "train" and (number + 1) % session.settings.batch_accumulation == 0:
                _step(session)
        if (number + 1) % check_period == 0:
            tally.check(where)
    if number < 0:
        raise InputError(f"The {split} split has no batches; give it at least one sample (dataset.split).")
    tally.check(where)
    if split == "train" and (number + 1) % session.settings.batch_accumulation != 0:
        _step(session)
    return tally


@contextmanager
def explain_not_finite(where: str) -> Iterator[None]:
    """A model may notice NaN inside itself, before there is a loss, as the k-MIP search does."""
    try:
        yield
    except FloatingPointError as error:
        raise TrainingDiverged(f"The model met NaN or infinite values in {where}: {error}.") from error


def prepare(session: Session, loaded: Any, split: str, epoch: int) -> Any:
    """Return the batch on its device, in the precision of the run, with what the model finds beside its data."""
    # A shallow copy: a loader may yield the same object again, and the model and the lines below set attributes.
    batch = session.fabric.to_device(copy.copy(loaded))
    if session.settings.precision == "64-true":
        batch = batch.apply(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
    batch.split = split
    batch.progress = epoch / max(1, session.settings.max_epoch - 1)
    return batch


def run_batch(session: Session, batch: Any, tally: Tally) -> None:
    """Put a batch through model, loss and score into the tally, and in training its gradient into the parameters."""
    pred, true = session.model(batch)
    if getattr(batch, "filler", False):
        pred, true = pred[:0], true[:0]  # runs, counts nowhere
    total, weight = session.task.loss(pred, true, all_reduce)
    sums = all_reduce(torch.stack([total.detach(), weight.to(total)]))
    if session.model.training:
        _backward(session, total, sums[1])
    tally.add(sums, session.task.score(pred.detach()), true)


def _backward(session: Session, total: Tensor, weight: Tensor) -> None:
    settings = session.settings
    share = settings.batch_accumulation if settings.accumulation_mean else 1
    session.fabric.backward(total * (session.fabric.world_size / (weight * share)))


def _step(session: Session) -> None:
    if session.settings.clip_grad_norm is not None:
        # A gradient that is not finite shows as a loss or parameters that are not, with a better message.
        session.fabric.clip_gradients(
            session.model, session.optimizer, max_norm=session.settings.clip_grad_norm, error_if_nonfinite=False
        )
    session.optimizer.step()
    session.optimizer.zero_grad()
