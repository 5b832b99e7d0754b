"""Checks of the arguments that every attention has: dim, num_heads, dropout."""

from __future__ import annotations

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
