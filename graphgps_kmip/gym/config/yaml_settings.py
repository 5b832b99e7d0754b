"""Config files: the settings of a YAML file and of its ``base:`` file as dotted keys."""

from __future__ import annotations

import logging
import reprlib
from functools import partial
from pathlib import Path
from typing import Any

from graphgps_kmip.common import yaml_files
from graphgps_kmip.common.project import find_config
from graphgps_kmip.common.yaml_files import flatten
from graphgps_kmip.errors import ConfigError


def read_settings(file: Path, readers: tuple[Path, ...] = ()) -> list[tuple[str, Any, str]]:
    """Return (dotted key, value, file) for each setting of a YAML file, those of its ``base:`` file before its own.

    Args:
        file: a YAML file; ``base: other.yaml`` in it is relative to its own folder.
        readers: files whose base this is, to find a circle.

    Raises:
        ConfigError: a file that cannot be read, is no YAML, or is its own base.
    """
    content = read_yaml(file, f"{readers[-1]}: base" if readers else "--cfg")
    base = content.pop("base", None)
    try:
        own = [(key, value, str(file)) for key, value in flatten(content)]
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    if base is None:
        return own
    if not isinstance(base, str) or not base.strip() or not base.isprintable():
        raise ConfigError(f"{file}: base: expected the path of a YAML file, got {reprlib.repr(base)}")
    base = find_config(Path(base), file.parent)
    if any(base.resolve() == reader.resolve() for reader in (file, *readers)):
        raise ConfigError(f"{file}: base: {base} leads back here: a file cannot be its own base")
    return read_settings(base, (*readers, file)) + own


def read_yaml(file: Path, named_by: str = "--cfg") -> dict[str, Any]:
    """Return the mapping in a YAML file; the log names each key that one group has twice, as public files do.

    Args:
        file: the file.
        named_by: what names the file, for messages: ``--cfg``, or the key ``base`` of another file.

    Raises:
        ConfigError: missing, unreadable, no YAML (line and column), or no mapping.
    """
    return yaml_files.read_yaml(file, named_by, on_duplicate=partial(_warn_of_duplicate, f"{file}:"))


def parse_yaml(text: str) -> Any:
    """Return what a value of the command line says in YAML.

    Raises:
        ConfigError: it is not valid YAML.
    """
    return yaml_files.parse_yaml(text, partial(_warn_of_duplicate, "line "))


def _warn_of_duplicate(where: str, line: int, key: str) -> None:
    logging.warning(
        "config: %s%d: %s is there twice in one group, and only the later one counts: delete one",
        where, line, reprlib.repr(key),
    )  # fmt: skip
