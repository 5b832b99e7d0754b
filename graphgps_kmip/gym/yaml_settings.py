"""Settings of a YAML file as dotted keys, and everything that can be wrong with such a file in one clear line each."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import yaml

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.common.project import find_config
from graphgps_kmip.gym.errors import ConfigError

MAX_DEPTH = 20  # groups inside groups; the config has 3
MAX_SETTINGS = 10_000  # the config has some 300 keys; aliases can write 2^100 of them into a few lines


def flatten(tree: dict[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for each leaf of nested mappings.

    Raises:
        ConfigError: nested deeper than `MAX_DEPTH`, as a mapping that contains itself is.
    """
    if depth > MAX_DEPTH:
        raise ConfigError(
            f"{prefix[:60]}...: groups are nested more than {MAX_DEPTH} deep, or a group contains itself by an alias: "
            "write `group: {key: value}`"
        )
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.", depth + 1)
        else:
            yield f"{prefix}{key}", value


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader that notes which keys a mapping has twice; of two, the later counts, as in public codes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.twice: list[tuple[int, str]] = []  # line, key

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Hashable, Any]:
        """Return the mapping of a node."""
        if isinstance(node, yaml.MappingNode):  # before its merge keys, whose entries may well be there twice
            names = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
            first: dict[str, int] = {}
            for name in names:
                if first.setdefault(name.value, name.start_mark.line) != name.start_mark.line:
                    self.twice.append((name.start_mark.line + 1, name.value))
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, where: str = "") -> Any:
    """Return what a YAML text says; the log names each key that one mapping has twice.

    Args:
        text: YAML.
        where: file that it is from, for the log.

    Raises:
        ConfigError: it is not valid, or its aliases stand for more than `MAX_SETTINGS` values; the message begins with
            line:column, if they are known.
    """
    try:
        loader = _Loader(text)
        content = loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{mark.line + 1}:{mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ConfigError(f"{place}not valid YAML ({problem}): fix this line") from error
    except RecursionError as error:
        text = f"not valid YAML: it is nested more than {MAX_DEPTH} deep: write `group: {{key: value}}`"
        raise ConfigError(text) from error
    except (ValueError, OverflowError) as error:  # a date with month 99, a number of 5,000 digits
        raise ConfigError(f"not valid YAML ({error}): quote this value or write another") from error
    _check_size(content)
    for line, key in loader.twice:
        logging.warning(
            "config: %s%d: %s is there twice in one group, and only the later one counts: delete one",
            f"{where}:" if where else "line ",
            line,
            reprlib.repr(key),
        )
    return content


def _check_size(content: Any) -> None:
    """Refuse what a few lines of aliases blow up to more values than memory or patience can hold."""
    todo, seen = [(content, 0)], 0
    while todo:
        value, depth = todo.pop()
        seen += 1
        if seen > MAX_SETTINGS:
            raise ConfigError(f"more than {MAX_SETTINGS:,} values: no config has so many, look at its aliases")
        if isinstance(value, (dict, list, tuple)) and depth <= MAX_DEPTH:  # deeper: `flatten` says where
            todo += [(one, depth + 1) for one in (value.values() if isinstance(value, dict) else value)]


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
    """Return the mapping in a YAML file.

    Args:
        file: the file.
        named_by: what names the file, for messages: ``--cfg``, or the key ``base`` of another file.

    Raises:
        ConfigError: missing, unreadable, no YAML (line and column), or no mapping.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        siblings = [path.name for path in file.parent.glob("*.y*ml")] if file.parent.is_dir() else []
        hint = suggest(file.name, siblings)
        hint = hint if "Did you mean" in hint else " Give the path of a YAML file there is."
        raise ConfigError(f"{named_by}: {file}: there is no such config file.{hint}") from None
    except IsADirectoryError:
        raise ConfigError(f"{named_by}: {file}: this is a directory: give a YAML file in it") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start}): save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{named_by}: {file}: cannot be read ({error.strerror or error}): check the path") from error
    try:
        content = parse_yaml(text, str(file))
    except ConfigError as error:
        raise ConfigError(f"{file}:{'' if str(error)[0].isdigit() else ' '}{error}") from error
    if content is None:
        raise ConfigError(f"{file}: says nothing, it is empty or holds comments only: give it `key: value` lines")
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: expected `key: value` lines, found {type(content).__name__}")
    return content
