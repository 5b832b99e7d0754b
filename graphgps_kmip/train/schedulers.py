"""Learning rate schedules by GraphGPS's names and definitions, stepped once per epoch."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, ReduceLROnPlateau

from graphgps_kmip.errors import InputError
from graphgps_kmip.registry import register

# GraphGPS starts the linear and cosine warm-ups here: epoch 0 trains with base_lr * 1e-6 (the polynomial one with 0).
FIRST_FACTOR = 1e-6
POLYNOMIAL_END = 1e-7  # a learning rate, not a factor
TIMM_START = 1e-7  # likewise, of epoch 0


# The factors below are closures, not partial objects or classes: LambdaLR then leaves them out of its state dict,
# which torch.load(weights_only=True) can read.


def _add_warmup(
    optimizer: Optimizer, num_warmup_epochs: int, after: Callable[[int], float], first: float = FIRST_FACTOR
) -> LambdaLR:
    def factor(epoch: int) -> float:
        if epoch < num_warmup_epochs:
            return max(first, epoch / num_warmup_epochs)
        return after(epoch)

    return LambdaLR(optimizer, factor)


@register("scheduler", "none")
def none(optimizer: Optimizer) -> LambdaLR:
    """Keep the learning rate."""
    return LambdaLR(optimizer, lambda _epoch: 1.0)


@register("scheduler", "step")
def step(optimizer: Optimizer, steps: Sequence[int], lr_decay: float) -> LambdaLR:
    """Multiply by `lr_decay` at each epoch in `steps`."""
    steps = sorted(steps)
    return LambdaLR(optimizer, lambda epoch: lr_decay ** bisect_right(steps, epoch))


@register("scheduler", "cos")
def cos(optimizer: Optimizer, max_epoch: int) -> CosineAnnealingLR:
    """Anneal to 0 at `max_epoch` along half a cosine."""
    return CosineAnnealingLR(optimizer, T_max=max_epoch)


@register("scheduler", "reduce_on_plateau", aliases=("plateau",), needs_metric=True)
def reduce_on_plateau(
    optimizer: Optimizer, reduce_factor: float, schedule_patience: int, min_lr: float
) -> ReduceLROnPlateau:
    """Multiply by `reduce_factor`, not below `min_lr`, after `schedule_patience` epochs without a lower val loss."""
    return ReduceLROnPlateau(optimizer, factor=reduce_factor, patience=schedule_patience, min_lr=min_lr)


@register("scheduler", "linear_with_warmup")
def linear_with_warmup(optimizer: Optimizer, num_warmup_epochs: int, max_epoch: int) -> LambdaLR:
    """Increase over `num_warmup_epochs` W, then decrease to 0: factor `max(0, (T - e) / (T - W))`, T = `max_epoch`."""
    length = max(1, max_epoch - num_warmup_epochs)
    return _add_warmup(optimizer, num_warmup_epochs, lambda epoch: max(0.0, (max_epoch - epoch) / length))


@register("scheduler", "cosine_with_warmup")
def cosine_with_warmup(optimizer: Optimizer, num_warmup_epochs: int, max_epoch: int) -> LambdaLR:
    """Increase over `num_warmup_epochs` W, then half a cosine: factor `(1 + cos(pi (e - W) / (T - W))) / 2`."""
    length = max(1, max_epoch - num_warmup_epochs)

    def after(epoch: int) -> float:
        return max(0.0, 0.5 * (1 + math.cos(math.pi * (epoch - num_warmup_epochs) / length)))

    return _add_warmup(optimizer, num_warmup_epochs, after)


@register("scheduler", "polynomial_with_warmup")
def polynomial_with_warmup(optimizer: Optimizer, num_warmup_epochs: int, max_epoch: int) -> LambdaLR:
    """Increase over `num_warmup_epochs`, then decrease along a straight line (power 1) to the learning rate 1e-7."""
    base_lr = optimizer.defaults["lr"]
    if base_lr <= POLYNOMIAL_END:
        raise InputError(
            f"optim.base_lr is {base_lr}; polynomial_with_warmup decreases to {POLYNOMIAL_END}: set it higher."
        )
    length, end = max(1, max_epoch - num_warmup_epochs), POLYNOMIAL_END / base_lr

    def after(epoch: int) -> float:
        return end + (1 - end) * max(0.0, (max_epoch - epoch) / length)

    return _add_warmup(optimizer, num_warmup_epochs, after, first=0.0)


@register("scheduler", "timm_cosine_with_warmup")
def timm_cosine_with_warmup(optimizer: Optimizer, num_warmup_epochs: int, max_epoch: int, min_lr: float) -> LambdaLR:
    """Increase from 1e-7 over `num_warmup_epochs` W, then half a cosine to `min_lr` at T = `max_epoch`; PPGT's.

    Learning rate of epoch e: `1e-7 + (base_lr - 1e-7) e / W` below W, then
    `min_lr + (base_lr - min_lr) (1 + cos(pi (e - W) / (T - W))) / 2`.
    """
    base_lr, length = optimizer.defaults["lr"], max(1, max_epoch - num_warmup_epochs)

    def factor(epoch: int) -> float:
        if epoch < num_warmup_epochs:
            return (TIMM_START + (base_lr - TIMM_START) * epoch / num_warmup_epochs) / base_lr
        share = min(1.0, (epoch - num_warmup_epochs) / length)
        return (min_lr + (base_lr - min_lr) * 0.5 * (1 + math.cos(math.pi * share))) / base_lr

    return LambdaLR(optimizer, factor)
