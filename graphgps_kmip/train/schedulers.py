"""Learning rate schedules by GraphGPS's names and definitions, stepped once per epoch."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, ReduceLROnPlateau

from graphgps_kmip.errors import InputError

# GraphGPS starts the linear and cosine warm-ups here: epoch 0 trains with base_lr * 1e-6 (the polynomial one with 0).
FIRST_FACTOR = 1e-6
POLYNOMIAL_END = 1e-7  # a learning rate, not a factor


@dataclass(frozen=True)
class SchedulerRecord:
    """One row of `SCHEDULERS`.

    Args:
        name: `optim.scheduler`.
        build: `build(optimizer, <optim keys by name>)`.
        summary: one line of help.
        needs_metric: True if it is stepped with the validation loss of the epoch, `step(loss)`.
    """

    name: str
    build: Callable[..., LRScheduler]
    summary: str
    needs_metric: bool = False


# The factors below are closures, not partial objects or classes: LambdaLR then leaves them out of its state dict,
# which torch.load(weights_only=True) can read.


def _with_warmup(
    optimizer: Optimizer, num_warmup_epochs: int, after: Callable[[int], float], first: float = FIRST_FACTOR
) -> LambdaLR:
    def factor(epoch: int) -> float:
        if epoch < num_warmup_epochs:
            return max(first, epoch / num_warmup_epochs)
        return after(epoch)

    return LambdaLR(optimizer, factor)


def none(optimizer: Optimizer) -> LambdaLR:
    """Keep the learning rate."""
    return LambdaLR(optimizer, lambda _epoch: 1.0)


def step(optimizer: Optimizer, steps: Sequence[int], lr_decay: float) -> LambdaLR:
    """Multiply by `lr_decay` at each epoch in `steps`."""
    steps = sorted(steps)
    return LambdaLR(optimizer, lambda epoch: lr_decay ** bisect_right(steps, epoch))


def cos(optimizer: Optimizer, max_epoch: int) -> CosineAnnealingLR:
    """Anneal to 0 at `max_epoch` along half a cosine."""
    return CosineAnnealingLR(optimizer, T_max=max_epoch)


def reduce_on_plateau(
    optimizer: Optimizer, reduce_factor: float, schedule_patience: int, min_lr: float
) -> ReduceLROnPlateau:
    """Multiply by `reduce_factor`, not below `min_lr`, after more than `schedule_patience` epochs without a new best.

    Step it with the validation loss of the epoch; a new best is lower by more than 1e-4 of the old one.
    """
    return ReduceLROnPlateau(optimizer, factor=reduce_factor, patience=schedule_patience, min_lr=min_lr)


def linear_with_warmup(optimizer: Optimizer, num_warmup_epochs: int, max_epoch: int) -> LambdaLR:
    """Rise over `num_warmup_epochs` W, then fall to 0: factor `max(0, (T - e) / (T - W))`, T = `max_epoch`."""
    length = max(1, max_epoch - num_warmup_epochs)
    return _with_warmup(optimizer, num_warmup_epochs, lambda epoch: max(0.0, (max_epoch - epoch) / length))


def cosine_with_warmup(optimizer: Optimizer, num_warmup_epochs: int, max_epoch: int) -> LambdaLR:
    """Rise over `num_warmup_epochs` W, then half a cosine: factor `(1 + cos(pi (e - W) / (T - W))) / 2`."""
    length = max(1, max_epoch - num_warmup_epochs)

    def after(epoch: int) -> float:
        return max(0.0, 0.5 * (1 + math.cos(math.pi * (epoch - num_warmup_epochs) / length)))

    return _with_warmup(optimizer, num_warmup_epochs, after)


def polynomial_with_warmup(optimizer: Optimizer, num_warmup_epochs: int, max_epoch: int) -> LambdaLR:
    """Rise over `num_warmup_epochs`, then fall along a straight line (power 1) to the learning rate 1e-7."""
    base_lr = optimizer.defaults["lr"]
    if base_lr <= POLYNOMIAL_END:
        raise InputError(
            f"optim.base_lr is {base_lr}; polynomial_with_warmup falls to {POLYNOMIAL_END}: set it higher."
        )
    length, end = max(1, max_epoch - num_warmup_epochs), POLYNOMIAL_END / base_lr

    def after(epoch: int) -> float:
        return end + (1 - end) * max(0.0, (max_epoch - epoch) / length)

    return _with_warmup(optimizer, num_warmup_epochs, after, first=0.0)


SCHEDULERS = {
    record.name: record
    for record in (
        SchedulerRecord("none", none, "constant learning rate"),
        SchedulerRecord("step", step, "times lr_decay at each epoch of steps"),
        SchedulerRecord("cos", cos, "half a cosine to 0 at max_epoch"),
        SchedulerRecord("plateau", reduce_on_plateau, "another name of reduce_on_plateau", needs_metric=True),
        SchedulerRecord(
            "reduce_on_plateau",
            reduce_on_plateau,
            "times reduce_factor when the validation loss has not fallen for schedule_patience epochs",
            needs_metric=True,
        ),
        SchedulerRecord("linear_with_warmup", linear_with_warmup, "linear rise, then a straight line to 0"),
        SchedulerRecord("cosine_with_warmup", cosine_with_warmup, "linear rise, then half a cosine to 0"),
        SchedulerRecord("polynomial_with_warmup", polynomial_with_warmup, "linear rise, then a straight line to 1e-7"),
    )
}
