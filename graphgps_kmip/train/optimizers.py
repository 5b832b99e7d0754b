"""Optimisers by GraphGym's names; arguments are named like the keys of `cfg.optim`, which GraphGym passes by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch.nn import Parameter
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer


@dataclass(frozen=True)
class OptimizerRecord:
    """One row of `OPTIMIZERS`: a name (`optim.optimizer`), `build(params, <optim keys>)` and one line of help."""

    name: str
    build: Callable[..., Optimizer]
    summary: str


def adamw(params: Iterable[Parameter], base_lr: float, weight_decay: float) -> AdamW:
    """Build AdamW: weight decay apart from the gradient."""
    return AdamW(params, lr=base_lr, weight_decay=weight_decay, fused=True)


def adagrad(params: Iterable[Parameter], base_lr: float, weight_decay: float) -> Adagrad:
    """Build Adagrad."""
    return Adagrad(params, lr=base_lr, weight_decay=weight_decay)


def adam(params: Iterable[Parameter], base_lr: float, weight_decay: float) -> Adam:
    """Build Adam: weight decay as part of the gradient."""
    return Adam(params, lr=base_lr, weight_decay=weight_decay, fused=True)


def sgd(params: Iterable[Parameter], base_lr: float, momentum: float, weight_decay: float) -> SGD:
    """Build stochastic gradient descent with momentum."""
    return SGD(params, lr=base_lr, momentum=momentum, weight_decay=weight_decay)


OPTIMIZERS = {
    record.name: record
    for record in (
        OptimizerRecord("adamW", adamw, "Adam with decoupled weight decay"),
        OptimizerRecord("adagrad", adagrad, "Adagrad"),
        OptimizerRecord("adam", adam, "Adam"),
        OptimizerRecord("sgd", sgd, "stochastic gradient descent with momentum"),
    )
}
