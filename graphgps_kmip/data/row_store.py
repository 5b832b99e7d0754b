"""`RowFile`: numbered rows of tensors in an SQLite file, which worker processes of loaders may read."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torch import Tensor
from torch_geometric.data import SQLiteDatabase

from graphgps_kmip.common.atomic_write import remove_leftovers, replacing
from graphgps_kmip.errors import InputError

TABLE = "clouds"
BATCH = 32  # rows written at once

Row = dict[str, Tensor]


class RowFile:
    """Rows of tensors that are written once, one after the other, and then only read.

    A connection must not be carried into another process, so that each process opens its own when it first reads:
    after a fork, and after pickling.

    Args:
        path: the file.
        schema: dtype and size of each tensor of a row, as torch_geometric's `Database` takes it.
    """

    def __init__(self, path: str | Path, schema: dict[str, Any]) -> None:
        self.path, self.schema = str(path), schema
        self._connections: dict[int, SQLiteDatabase] = {}

    @property
    def database(self) -> SQLiteDatabase:
        """This process's own read-only connection."""
        # A forked worker finds its parent's connection beside its own: it must neither use nor close it.
        if os.getpid() not in self._connections:
            self._connections[os.getpid()] = _ReadOnly(self.path, TABLE, self.schema)
        return self._connections[os.getpid()]

    def __getitem__(self, index: int) -> Row:
        """Return one row, a copy that the caller may change.

        Raises:
            ValueError: the file is damaged, or has no such row.
        """
        try:
            return self.database.get(index)
        except (sqlite3.Error, TypeError, RuntimeError) as error:  # TypeError: no such row; RuntimeError: half a row
            fix = f"remove the folder {os.path.dirname(self.path)} and start again"
            raise InputError(f"{self.path}: row {index} cannot be read ({error}): {fix}") from error

    def write(self, rows: Iterable[Row]) -> None:
        """Write the file anew, a few rows at a time; it appears under its name when it is complete."""
        rows, count = iter(rows), 0
        remove_leftovers(Path(self.path).parent)
        with replacing(Path(self.path)) as part:
            with closing(SQLiteDatabase(str(part), TABLE, self.schema)) as database:
                while batch := list(islice(rows, BATCH)):
                    database.multi_insert(range(count, count + len(batch)), batch)
                    count += len(batch)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_connections": {}}


class _ReadOnly(SQLiteDatabase):
    """A finished database: nothing is written, not even a lock."""

    def connect(self) -> None:
        path = quote(os.path.abspath(self.path))
        self._connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        self._cursor = self._connection.cursor()
