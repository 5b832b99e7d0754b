"""One epoch: a pass over one split, training or evaluation, and the accumulator of its metrics over processes."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphgps_kmip.common.host_copies import remember_batch
from graphgps_kmip.common.signals import StopSignals
from graphgps_kmip.errors import InputError, OutOfMemory, TrainingDiverged, is_out_of_memory
from graphgps_kmip.results.run_stats import rounded
from graphgps_kmip.task.task import HALF, Task
from graphgps_kmip.train.distributed import all_reduce, gather_rows
from graphgps_kmip.train.settings import TrainSettings

if TYPE_CHECKING:
    from lightning_fabric import Fabric


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
        """Check the losses added since the last call.

        Raises:
            TrainingDiverged: one of them is NaN or infinite; names the first such batch, `where` says the pass.
        """
        added = self.sums[self._checked :]
        if not added:
            return
        losses = _losses(added)
        bad = (~torch.isfinite(losses)).nonzero().flatten()
        if len(bad):
            first = int(bad[0])
            raise TrainingDiverged(f"The loss is {float(losses[first])} in {where}, batch {self._checked + first}.")
        self._checked = len(self.sums)

    def summary(self, task: Task, device: torch.device) -> dict[str, float]:
        r"""Return the loss and the metrics of the whole split.

        .. math:: loss = \sum_b n_b \, loss_b / \sum_b n_b

        as GraphGym reports it, `n_b` the rows (graphs, or nodes in node tasks) of global batch b; the metrics see all
        rows at once, in float32, or float64 where the run is.
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
    if tensor.dtype in HALF:
        tensor = tensor.float()
    return tensor.to("cpu", non_blocking=True)


# Reading a loss makes the host wait for CUDA, so there it is checked every so many batches and at the end of a pass.
CUDA_CHECK_PERIOD = 32


@dataclass(frozen=True)
class Session:
    """What every pass works with: the model and optimizer as Fabric set them up, and the settings.

    Without an optimizer, a session evaluates a trained model: no split is trained on, and schedules are at their end.
    """

    fabric: Fabric
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None
    task: Task | None
    settings: TrainSettings
    stop: StopSignals
    num_params: int


class SharedGraph:
    """The batch that evaluations of several splits share, where these are nodes of one graph.

    The model passes over it once; for the other splits only its head runs.

    Args:
        model: shares if its ``reads_encoded`` says that a batch with ``encoded`` features goes to its head alone.
        loaders: of the splits; they share if they have the same ``single_graph``.
    """

    def __init__(self, model: torch.nn.Module, loaders: Iterable[Iterable]) -> None:
        graphs = [getattr(loader, "single_graph", None) for loader in loaders]
        one = bool(graphs) and graphs[0] is not None and all(graph is graphs[0] for graph in graphs)
        self.shares, self._batch = one and getattr(model, "reads_encoded", False), None

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


def run_epoch(
    session: Session, loader: Iterable, split: str, epoch: int, shared: SharedGraph | None = None
) -> dict[str, Any]:
    """Run the model over a split, with optimizer steps if it is "train", and return GraphGym's statistics of the pass.

    Each batch gets `batch.split`, `batch.progress` and `batch.epoch`, see `prepare`. Seconds include the metrics.

    Args:
        session: the model, and what it is run with.
        loader: of the split.
        split: "train", "val" or "test".
        epoch: number of the epoch.
        shared: what evaluations with the same parameters share; None: nothing.

    Raises:
        TrainingDiverged: a loss is NaN or infinite.
        OutOfMemory: a batch did not fit.
        Stopped: a signal came.
    """
    began = time.perf_counter()
    lr = session.optimizer.param_groups[0]["lr"] if session.optimizer else 0.0
    if session.optimizer and hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
    training = split == "train" and session.optimizer is not None
    session.model.train(training)
    with torch.set_grad_enabled(training):
        accumulator = _run_batches(session, loader, split, epoch, shared)
    summary = accumulator.summary(session.task, session.fabric.device)
    seconds = time.perf_counter() - began
    stats = {
        "epoch": epoch,
        "time_epoch": seconds,
        "loss": summary.pop("loss"),
        "lr": lr,
        "params": session.num_params,
        "time_iter": seconds / len(accumulator.sums),
        **summary,
    }
    return rounded(stats, session.settings.round)


def _run_batches(
    session: Session, loader: Iterable, split: str, epoch: int, shared: SharedGraph | None
) -> MetricAccumulator:
    accumulator = MetricAccumulator()
    where = f"{split} epoch {epoch}" if session.optimizer else f"the evaluation of {split}"
    number = -1
    check_period = CUDA_CHECK_PERIOD if session.fabric.device.type == "cuda" else 1
    for number, batch in enumerate(_prepared(session, loader, split, epoch, shared)):
        with explain_out_of_memory(batch), explain_not_finite(f"{where}, batch {number}"):
            run_batch(session, batch, accumulator)
            if session.model.training and (number + 1) % session.settings.batch_accumulation == 0:
                _step(session)
        if (number + 1) % check_period == 0:
            accumulator.check(where)
    if number < 0:
        raise InputError(f"The {split} split has no batches; give it at least one sample (dataset.split).")
    accumulator.check(where)
    if session.model.training and (number + 1) % session.settings.batch_accumulation != 0:
        _step(session)
    return accumulator


def _prepared(session: Session, loader: Iterable, split: str, epoch: int, shared: SharedGraph | None) -> Iterator[Any]:
    """Yield the batches of a split, or the one that an evaluation of another split has left."""
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


@contextmanager
def explain_out_of_memory(batch: Any) -> Iterator[None]:
    """Turn an allocator's error into one line with the size of the batch and the config keys to change.

    Raises:
        OutOfMemory: the block ran out of memory; any other error passes through.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"Out of memory on a batch of {_describe(batch)}. Lower train.batch_size and raise "
            "optim.batch_accumulation by the same factor, set share.gradient_checkpointing True, or lower "
            f"gt.dim_hidden. ({str(error).splitlines()[0] if str(error) else 'MemoryError'})"
        ) from error


def _describe(batch: Any) -> str:
    ptr = getattr(batch, "ptr", None)
    if ptr is None:
        return f"1 graph of {getattr(batch, 'num_nodes', 'unknown')} nodes"
    sizes = ptr.diff()
    return f"{len(sizes)} graphs, the largest of {int(sizes.max())} nodes"


@contextmanager
def explain_not_finite(where: str) -> Iterator[None]:
    """Turn what a model raises on NaN inside itself, as the k-MIP search does, into `TrainingDiverged`."""
    try:
        yield
    except FloatingPointError as error:
        raise TrainingDiverged(f"The model met NaN or infinite values in {where}: {error}.") from error


def prepare(session: Session, loaded: Any, split: str, epoch: int) -> Any:
    """Return the batch on its device, in the precision of the run.

    It has `batch.split`, and `batch.progress`: ``epoch / (max_epoch - 1)``, or 1 in a session that only evaluates.
    `batch.epoch` is the epoch, for schedules that count epochs, and is not set there.
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


def run_batch(session: Session, batch: Any, accumulator: MetricAccumulator) -> None:
    """Add loss and score of a batch to the accumulator, and in training its gradient to the parameters."""
    pred, true = session.model(batch)
    if getattr(batch, "filler", False):
        pred, true = pred[:0], true[:0]  # runs, counts nowhere
    total, weight = session.task.loss(pred, true, all_reduce)
    sums = all_reduce(torch.stack([total.detach(), weight.to(total)]))
    if session.model.training:
        _backward(session, total, sums[1])
    accumulator.add(sums, session.task.score(pred.detach()), true)


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
