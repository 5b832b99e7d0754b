"""The user's errors: one clear line each, with near misses; main.py prints it and exits with code 2."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from graphgps_kmip.names import suggest
from graphgps_kmip.train.errors import RunError

Record = TypeVar("Record")
PACKAGE = Path(__file__).parents[1]


class ConfigError(ValueError):
    """A mistake in a YAML file, on the command line or in a registration: what, where, and the mend."""


def look_up(table: Mapping[str, Record], name: str, key: str) -> Record:
    """Return ``table[name]``.

    Args:
        table: rows by name.
        name: the name a user gave.
        key: the config key it was given for, named in the error.

    Raises:
        ConfigError: no such row; near misses are suggested.
    """
    if name not in table:
        raise ConfigError(f"{key}: unknown name {name!r}.{suggest(name, table)} `python main.py --list` shows all.")
    return table[name]


def is_users(error: BaseException) -> bool:
    """Tell whether an error is one that a user can mend, rather than a bug.

    It is if it was made for them (`RunError`), or if it is a ValueError that this package raised itself: one that
    torch raised below us has its last frame elsewhere.
    """
    if isinstance(error, (RunError, ConfigError)):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, ValueError) and bool(frames) and PACKAGE in Path(frames[-1].filename).parents
