"""Random features drawn anew in the course of training, as the reference implementation of the Performer does it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from graphgps_kmip.attention.performer import PerformerAttention
from graphgps_kmip.errors import InputError

PERIOD = 1001  # calls: the reference counts 1000 of them, and draws at the one after


def redraw_regularly(model: nn.Module, period: int = PERIOD) -> None:
    """Let a network draw the random vectors of all its `PerformerAttention` anew at every period-th call in training.

    They are a function of a seed, drawn from torch's generator here, and of the number of calls. Both are buffers of
    the network, so that processes agree, a resumed run goes on as if never stopped, and torch's random numbers stay
    as they are. Layers that are computed again in the backward pass see the same vectors twice.

    Args:
        model: network, changed in place.
        period: calls from one draw to the next, at least 1.

    Raises:
        ValueError: period < 1.
    """
    if period < 1:
        raise InputError(f"period must be >= 1, got {period}")
    model.register_buffer("redraw_seed", torch.randint(2**31, ()))
    model.register_buffer("redraw_calls", torch.zeros((), dtype=torch.long))
    model.register_forward_pre_hook(partial(_count, period=period))


def _count(model: nn.Module, args: tuple[Any, ...], *, period: int) -> None:  # noqa: ARG001 (a hook's signature)
    if not model.training:
        return
    model.redraw_calls += 1
    if int(model.redraw_calls) % period:
        return
    generator = torch.Generator().manual_seed(int(model.redraw_seed + model.redraw_calls))
    for module in model.modules():
        if isinstance(module, PerformerAttention):
            module.redraw(generator)
