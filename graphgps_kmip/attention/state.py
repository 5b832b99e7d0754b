"""The state of an attention that is called by itself, and not in a stack of layers that carries states along."""

from __future__ import annotations

from typing import Any

from torch import nn

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.errors import InputError


def own_state(attention: nn.Module, context: GraphContext) -> Any:
    """Return the state that an attention starts from.

    Raises:
        ValueError: it is a later layer of a stack, which keeps the learned start in its first layer.
    """
    if not hasattr(attention, "initial_state"):
        raise InputError(
            f"{type(attention).__name__} is a later layer of a stack, whose first layer makes the state: pass the "
            "one that the layer before returned, as attention(x, context, state)"
        )
    return attention.initial_state(context)
