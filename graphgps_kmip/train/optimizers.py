"""Optimisers by GraphGym's names; arguments are named like the keys of `cfg.optim`, which GraphGym passes by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from torch.nn import Parameter
from torch.optim import SGD, Adagrad, Adam, AdamW

from graphgps_kmip.ranges import DROPOUT
from graphgps_kmip.registry import register


@register("optimizer", "adamW", aliases=("timm_adamW",))  # timm's is torch's, which decays every parameter here, too
def adamw(
    params: Iterable[Parameter],
    base_lr: float,
    weight_decay: float,
    *,
    beta1: Annotated[float, DROPOUT] = 0.9,
    beta2: Annotated[float, DROPOUT] = 0.999,
) -> AdamW:
    """AdamW: Adam with weight decay apart from the gradient."""
    return AdamW(params, lr=base_lr, betas=(beta1, beta2), weight_decay=weight_decay, fused=True)


@register("optimizer", "adagrad")
def adagrad(params: Iterable[Parameter], base_lr: float, weight_decay: float) -> Adagrad:
    """Adagrad."""
    return Adagrad(params, lr=base_lr, weight_decay=weight_decay)


@register("optimizer", "adam")
def adam(params: Iterable[Parameter], base_lr: float, weight_decay: float) -> Adam:
    """Adam with weight decay as part of the gradient."""
    return Adam(params, lr=base_lr, weight_decay=weight_decay, fused=True)


@register("optimizer", "sgd")
def sgd(params: Iterable[Parameter], base_lr: float, momentum: float, weight_decay: float) -> SGD:
    """Stochastic gradient descent with momentum."""
    return SGD(params, lr=base_lr, momentum=momentum, weight_decay=weight_decay)
