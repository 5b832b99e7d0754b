"""Arguments that attentions share: checks of dim, num_heads, dropout and choices, split into heads, ``extra_repr``."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import Any

from torch import Tensor, nn

from graphgps_kmip.errors import InputError


def dim_per_head(dim: int, num_heads: int) -> int:
    """Return dim / num_heads.

    Raises:
        ValueError: num_heads < 1, or it does not divide dim (the message names the nearest dims that it does divide).
    """
    check_least(1, num_heads=num_heads)
    below = dim - dim % num_heads
    if dim < 1 or below != dim:
        nearest = " or ".join(str(near) for near in (below, below + num_heads) if near > 0)
        raise InputError(f"dim must be divisible by num_heads, got dim {dim} and {num_heads} heads: use dim {nearest}")
    return dim // num_heads


def check_dropout(dropout: float) -> float:
    """Return dropout as it is, a number in [0, 1); else raise ValueError."""
    if not 0.0 <= dropout < 1.0:
        raise InputError(f"attention dropout must be in [0, 1), got {dropout}")
    return dropout


def check_least(least: float, **arguments: float | None) -> None:
    """Raise ValueError if one of the arguments is less than ``least``; None is passed over."""
    for name, value in arguments.items():
        if value is not None and value < least:
            raise InputError(f"{name} must be >= {least}, got {value}")


def check_choice(choices: Iterable[str], **arguments: str) -> None:
    """Raise ValueError if one of the arguments is none of the choices."""
    for name, value in arguments.items():
        if value not in choices:
            raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Split the channels into heads: (N, H * D) -> (N, H, D)."""
    return x.unflatten(1, (num_heads, -1))


def describe(attention: nn.Module, *always: str, **values: Any) -> str:
    """Return the ``extra_repr`` of an attention: arguments that differ from their defaults, and those of ``always``.

    The value of an argument is in ``values``, or the attribute of its name; of a Dropout it is the probability.
    """
    arguments = signature(type(attention).__init__).parameters
    shown = []
    for name in dict.fromkeys(("dim", "num_heads", *always, *arguments)):
        default = arguments[name].default
        value = values.get(name, getattr(attention, name, default))
        value = value.p if isinstance(value, nn.Dropout) else value
        if name in always or not (isinstance(value, nn.Module | Tensor) or value == default):
            shown.append(f"{name}={value!r}")
    return ", ".join(shown)
