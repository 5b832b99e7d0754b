"""Check of categorical inputs, shared by the encoders of node and edge types."""

from __future__ import annotations

from torch import Tensor


def type_ids(types: Tensor, num_types: int, name: str, key: str) -> Tensor:
    """Return types as int64 (rows,) after checking that an embedding table of ``num_types`` rows has them.

    Args:
        types: one column of integers, of any dtype.
        num_types: size of the table.
        name: attribute that holds the types, for the error.
        key: config key of the table's size, for the error.

    Shapes: (rows,) or (rows, 1) -> (rows,).

    Raises:
        ValueError: several columns, or a type outside 0..num_types - 1 (on a GPU the table itself could not say which).
    """
    if types.dim() > 2 or (types.dim() == 2 and types.size(1) != 1):
        raise ValueError(f"{name} must hold one type a row, got shape {tuple(types.shape)}: use a linear encoder")
    types = types.reshape(-1).long()
    low, high = (int(types.min()), int(types.max())) if types.numel() else (0, 0)
    if low < 0 or high >= num_types:
        raise ValueError(f"{name} holds types {low} to {high}, but {key} is {num_types}: set it to {high + 1} or more")
    return types
