"""Reads one graph of a data set; what fails names the graph and its file."""

from __future__ import annotations

import lzma
import pickle
import sqlite3
import struct
import zlib
from collections.abc import Sequence

from torch_geometric.data import Data

from graphgps_kmip.errors import DataError

# What a damaged or missing file, a full disk or too little memory raise. Other kinds are bugs of the reading code.
FILE_ERRORS = (OSError, EOFError, ValueError, MemoryError, RecursionError)
FILE_ERRORS += (sqlite3.Error, zlib.error, lzma.LZMAError, struct.error, pickle.UnpicklingError)


def one_line(error: BaseException) -> str:
    """Return kind and text of an error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def graph_at(graphs: Sequence[Data], number: int, place: str) -> Data:
    """Return one graph of a sequence that may read it from disk.

    Args:
        graphs: the sequence.
        number: of the graph, from 0.
        place: the words that name it.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return graphs[number]
    except DataError:
        raise
    except FILE_ERRORS as error:
        raise DataError(f"{place} cannot be read ({one_line(error)}): write its file again") from error
