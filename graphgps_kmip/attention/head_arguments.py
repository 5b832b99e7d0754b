"""Arguments that all attentions share: checks of dim, num_heads, dropout and fractions, and ``extra_repr``."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import Tensor, nn

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


def described(attention: nn.Module, dim: int, num_heads: int, *, always: tuple[str, ...] = (), **derived: Any) -> str:
    """Return the ``extra_repr`` of an attention: dim, heads, and the options that differ from their defaults.

    An option is an argument of the constructor; its value is the attribute of its name, the probability of a Dropout.

    Args:
        attention (Module): module whose constructor has the defaults.
        dim (int): channels in and out.
        num_heads (int): heads.
        always (tuple[str, ...], optional): options that are shown even with their default value. (default: ())
        derived: values of options that the module has under no attribute of their name.
    """
    defaults = {name: parameter.default for name, parameter in signature(type(attention).__init__).parameters.items()}
    shown: dict[str, Any] = {"dim": dim, "num_heads": num_heads}
    for name in dict.fromkeys((*always, *defaults)):
        value = derived.get(name, getattr(attention, name, defaults.get(name)))
        value = value.p if isinstance(value, nn.Dropout) else value
        differs = not isinstance(value, nn.Module | Tensor) and value != defaults.get(name)
        if name in always or (differs and name not in ("self", "dim", "num_heads")):
            shown[name] = value
    return ", ".join(f"{name}={value!r}" for name, value in shown.items())
