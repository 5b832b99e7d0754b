"""Translation of the keys of a public code whose files have groups of their own: what a key of theirs is among ours.

`Code` is the description of one code; those of PPGT and GRIT are in ``ppgt_keys`` and ``grit_keys``. Keys that stand in
none of its tables pass as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from graphgps_kmip.errors import ConfigError

Setting = tuple[str, Any, str]  # key, value, where it stands
COMMAND_LINE = "the command line"


@dataclass(frozen=True)
class Code:
    """What the keys of a public code are among ours.

    Args:
        name: its dialect.
        keys: their key -> ours, with the same values.
        together: patterns of keys that only together say what one of ours is.
        derive: all settings of a file, by their keys -> ours for what ``together`` names.
        only: pattern of a key -> values that this package has; others are refused.
        unread: pattern of a key that changes nothing, or cannot here -> values that need no warning; None: all.
    """

    name: str
    keys: Mapping[str, str]
    together: tuple[str, ...]
    derive: Callable[[Mapping[str, Any]], dict[str, Any]]
    only: Mapping[str, tuple[Any, ...]]
    unread: Mapping[str, tuple[Any, ...] | None]


def translated(settings: Iterable[Setting], code: Code) -> list[Setting]:
    """Return settings under our keys; what is derived from several of theirs stands where the first of them stood.

    Args:
        settings: of files and command line, in order.
        code: whose they are.

    Raises:
        ConfigError: a value that this package does not have.
    """
    settings = [_on_any_machine(setting) for setting in settings]
    derived = code.derive({key: value for key, value, _ in settings})
    found: list[Setting] = []
    read: dict[str, str] = {}
    unread: dict[str, bool] = {}  # "key value" -> whether a warning is due
    placed = False
    for key, value, origin in settings:
        _check(key, value, origin, code.only)
        if key in code.keys:
            read[key] = code.keys[key]
            found.append((code.keys[key], value, origin))
        elif _first_match(key, code.together) is not None:
            if not placed:
                found += [(ours, one, origin) for ours, one in derived.items()]
            placed = True
        elif (pattern := _first_match(key, code.unread)) is not None:
            quiet = code.unread[pattern]
            unread[f"{key} {value}"] = quiet is not None and value not in quiet
        elif _first_match(key, code.only) is None:
            found.append((key, value, origin))
    _log(code.name, read, derived if placed else {}, unread)
    return found


def _check(key: str, value: Any, origin: str, only: Mapping[str, tuple[Any, ...]]) -> None:
    pattern = _first_match(key, only)
    if pattern is not None and value not in only[pattern]:
        allowed = " or ".join(str(one) or "''" for one in only[pattern])
        raise ConfigError(f"{origin}: {key} {value}: this package has only {allowed}: change it, or leave it out")


def _first_match(key: str, patterns: Iterable[str]) -> str | None:
    return next((pattern for pattern in patterns if fnmatchcase(key, pattern)), None)


def _on_any_machine(setting: Setting) -> Setting:
    """Let files that name their authors' GPUs run on the device that is there; the command line is taken as is."""
    key, value, origin = setting
    if key != "accelerator" or origin == COMMAND_LINE:
        return setting
    devices = str(value).split(",")
    if devices[0] != "cuda:0":
        return setting
    logging.info("config: accelerator %s of a public file is read as auto: a GPU if there is one, else the CPU", value)
    if len(devices) > 1:
        logging.warning(
            "config: the file was made for %d GPUs with train.batch_size graphs each, this run is for one device; for "
            "the same batches multiply train.batch_size, which counts over all devices here, and set devices",
            len(devices),
        )
    return key, "auto", origin


def _log(name: str, read: Mapping[str, str], derived: Mapping[str, Any], unread: Mapping[str, bool]) -> None:
    if read or derived:
        keys = ", ".join(f"{theirs} as {ours}" for theirs, ours in read.items())
        values = ", ".join(f"{key} {value}" for key, value in derived.items())
        logging.info("config: keys of %s are read as ours: %s", name, "; ".join(one for one in (keys, values) if one))
    for level, due in ((logging.WARNING, True), (logging.INFO, False)):
        if listed := ", ".join(one for one, warns in unread.items() if warns == due):
            logging.log(level, "config: accepted, but no part of this package reads %s", listed)
