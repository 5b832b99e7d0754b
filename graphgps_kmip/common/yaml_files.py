"""YAML of files and command-line values: no duplicate keys, errors with line and column, groups as dotted keys."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from graphgps_kmip.common.near_misses import near_misses
from graphgps_kmip.errors import ConfigError, UserError

OnDuplicate = Callable[[int, str], None]  # line, key


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for each leaf."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """PyYAML's safe loader, of C where PyYAML has it, that notes which keys a mapping has twice."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.duplicates: list[tuple[int, str]] = []  # line, key
        self.checked: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Join the entries of merge keys (``<<``) to a mapping, whose own ones are checked before."""
        seen = set()
        for key, _ in node.value if id(node) not in self.checked else ():
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                self.duplicates.append((key.start_mark.line + 1, key.value))
            seen.add((key.tag, key.value if isinstance(key, yaml.ScalarNode) else id(key)))
        self.checked.add(id(node))
        super().flatten_mapping(node)


def parse_yaml(text: str, on_duplicate: OnDuplicate | None = None) -> Any:
    """Return the content of a YAML text.

    Args:
        text (str): YAML.
        on_duplicate (callable, optional): called with line and key for each key that a mapping has twice, of which the
            later counts. ``None``: a duplicate is an error. (default: ``None``)

    Raises:
        ConfigError: not valid, or a key twice; begins with line:column.
    """
    try:
        loader = _Loader(text)
        content = loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{mark.line + 1}:{mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ConfigError(f"{place}not valid YAML ({problem}): fix this line") from error
    for line, key in loader.duplicates:
        if on_duplicate is None:
            raise ConfigError(f"{line}: the key {key!r} is there twice in one mapping: delete one")
        on_duplicate(line, key)
    return content


def parse_overrides(arguments: Sequence[str], on_duplicate: OnDuplicate | None = None) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of a command-line tail ``[key, value, ...]``; values are YAML: ``1e-3``, ``true``."""
    if len(arguments) % 2:
        raise ConfigError(f"the command line: keys and values come in pairs, {arguments[-1]!r} has no partner")
    for key, value in zip(arguments[::2], arguments[1::2], strict=True):
        try:
            yield key, parse_yaml(value, on_duplicate) if value.strip() else ""  # as a shell writes no text, not null
        except ConfigError as error:
            raise ConfigError(
                f"the command line: {key}: its value {reprlib.repr(value)} cannot be read ({error}): quote it"
            ) from error


def read_yaml(
    file: Path,
    named_by: str = "",
    error_type: type[UserError] = ConfigError,
    on_duplicate: OnDuplicate | None = None,
    empty: bool = False,
) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Args:
        file (Path): the file.
        named_by (str, optional): what names the file in messages: ``--cfg``, or a key. (default: ``""``)
        error_type (type, optional): of the error. (default: ``ConfigError``)
        on_duplicate (callable, optional): as of `parse_yaml`. (default: ``None``)
        empty (bool, optional): whether an empty file is an empty mapping, rather than an error. (default: ``False``)
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        siblings = [path.name for path in file.parent.glob("*.y*ml")] if file.parent.is_dir() else []
        hint = near_misses(file.name, siblings) or " Give the path of a YAML file there is."
        named_by = f"{named_by}: " if named_by else ""
        raise error_type(f"{named_by}{file}: there is no such config file.{hint}") from None
    except UnicodeDecodeError as error:
        raise error_type(f"{file}: not UTF-8 text ({error.reason} at byte {error.start}): save it as UTF-8") from error
    try:
        content = parse_yaml(text, on_duplicate)
    except ConfigError as error:
        raise error_type(f"{file}:{'' if str(error)[0].isdigit() else ' '}{error}") from error
    if content is None:
        if empty:
            return {}
        raise error_type(f"{file}: says nothing, it is empty or holds comments only: give it `key: value` lines")
    if not isinstance(content, dict):
        raise error_type(f"{file}: expected `key: value` lines, found {type(content).__name__}")
    return content
