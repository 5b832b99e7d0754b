"""Near misses: suggestions for a misspelt name in error messages, and look-up by name."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from graphgps_kmip.common.environment import train_command
from graphgps_kmip.errors import ConfigError

Record = TypeVar("Record")


def suggest(name: str, allowed: Iterable[str]) -> str:
    """Return `` Did you mean a or b?`` where something is near, else `` Allowed: ...`` with all names."""
    names = {str(other).lower(): str(other) for other in sorted(allowed, key=str)}
    close = [names[match] for match in difflib.get_close_matches(str(name).lower(), names, n=3)]
    if close:
        return f" Did you mean {' or '.join(close)}?"
    return f" Allowed: {', '.join(names.values())}."


def near_misses(name: str, allowed: Iterable[str]) -> str:
    """Return `` Did you mean a or b?`` where something is near, else nothing."""
    text = suggest(name, allowed)
    return text if text.startswith(" Did you mean") else ""


def look_up(table: Mapping[str, Record], name: str, key: str) -> Record:
    """Return ``table[name]``, the name that a user gave for a config key."""
    if not isinstance(name, str) or name not in table:
        shown, hint = reprlib.repr(name), suggest(str(name)[:100], table)
        raise ConfigError(f"{key}: unknown name {shown}.{hint} `{train_command()} --list` shows all.")
    return table[name]
