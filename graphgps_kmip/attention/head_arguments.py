"""Arguments that all attentions share: checks of dim, num_heads, dropout and fractions, and ``extra_repr``."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import nn

from graphgps_kmip.errors import InputError


def dim_per_head(dim: int, num_heads: int) -> int:
    """Return dim / num_heads.

    Raises:
        ValueError: num_heads < 1, or it does not divide dim (the message names the nearest dims that it does divide).
    """
    if num_heads < 1:
        raise InputError(f"num_heads must be >= 1, got {num_heads}")
    below = dim - dim % num_heads
    if dim < 1 or below != dim:
        nearest = " or ".join(str(near) for near in (below, below + num_heads) if near > 0)
        raise InputError(f"dim must be divisible by num_heads, got dim {dim} and {num_heads} heads: use dim {nearest}")
    return dim // num_heads


def check_dropout(dropout: float) -> float:
    """Return dropout as it is.

    Raises:
        ValueError: it is not in [0, 1).
    """
    if not 0.0 <= dropout < 1.0:
        raise InputError(f"attention dropout must be in [0, 1), got {dropout}")
    return dropout


def check_share(name: str, share: float) -> float:
    """Return a fraction as it is.

    Args:
        name (str): of the argument, for the error.
        share (float): its value.

    Raises:
        ValueError: it is not in (0, 1].
    """
    if not 0.0 < share <= 1.0:
        raise InputError(f"{name} must be in (0, 1], got {share}")
    return share


def described(attention: nn.Module, dim: int, num_heads: int, *, always: tuple[str, ...] = (), **options: Any) -> str:
    """Return the ``extra_repr`` of an attention: dim, heads, and the options that differ from their defaults.

    Args:
        attention (Module): module whose constructor has the defaults.
        dim (int): channels in and out.
        num_heads (int): heads.
        always (tuple[str, ...], optional): options that are shown even with their default value. (default: ())
        options: arguments of the constructor and their values.
    """
    defaults = {name: parameter.default for name, parameter in signature(type(attention).__init__).parameters.items()}
    shown = {name: value for name, value in options.items() if name in always or value != defaults.get(name)}
    return ", ".join(f"{name}={value!r}" for name, value in {"dim": dim, "num_heads": num_heads, **shown}.items())
