"""What can be wrong with the files of a data set, told in one line."""

from __future__ import annotations


class DataError(ValueError):
    """Raw files are missing, damaged, or want to run code: which, where, and the mend."""


class UnsafeFile(DataError):
    """A file asks for something that data never needs; nothing of it was run."""
