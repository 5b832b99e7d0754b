"""Categorical inputs: checks and look-ups shared by the encoders of nodes and edges."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn

from graphgps_kmip.errors import InputError


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
        raise InputError(f"{name} must hold one type a row, got shape {tuple(types.shape)}: use a linear encoder")
    types = types.reshape(-1).long()
    low, high = (int(types.min()), int(types.max())) if types.numel() else (0, 0)
    if low < 0 or high >= num_types:
        raise InputError(f"{name} holds types {low} to {high}, but {key} is {num_types}: set it to {high + 1} or more")
    return types


def embedded(tables: Collection[nn.Embedding], columns: Tensor, name: str, encoder: str) -> Tensor:
    """Return the sum over the columns of the vector that a column's table has for the value in it.

    Args:
        tables: one for each column.
        columns: integers, of any dtype.
        name: attribute that holds them, for the error.
        encoder: public name of the encoder, for the error.

    Shapes: (rows, len(tables)) -> (rows, C).

    Raises:
        ValueError: another number of columns, or a value without a row (on a GPU the table itself could not say which).
    """
    if columns.dim() != 2 or columns.size(1) != len(tables):
        raise InputError(f"{encoder} needs {name} (rows, {len(tables)}), integers, got shape {tuple(columns.shape)}")
    columns = columns.long()
    sizes = columns.new_tensor([table.num_embeddings for table in tables])
    outside = ((columns < 0) | (columns >= sizes)).nonzero()
    if len(outside):
        row, column = outside[0].tolist()
        raise InputError(
            f"{encoder}: {name} holds {int(columns[row, column])} in row {row}, column {column}, where values 0 to "
            f"{int(sizes[column]) - 1} are known: these are not the features this encoder was made for"
        )
    return sum(table(column) for table, column in zip(tables, columns.T, strict=True))
