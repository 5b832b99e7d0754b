"""YAML of files and command-line values: no duplicate keys, errors with line and column, groups as dotted keys."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from graphgps_kmip.common.near_misses import near_misses
from graphgps_kmip.errors import ConfigError, UserError

MAX_DEPTH = 20  # groups inside groups; the config has 3
MAX_VALUES = 10_000  # the config has some 300 keys; aliases can write 2^100 of them into a few lines

OnDuplicate = Callable[[int, str], None]  # line, key


def flatten(tree: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for each leaf; a ConfigError for groups deeper than `MAX_DEPTH` or in themselves."""
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
    """PyYAML's safe loader that notes which keys a mapping has twice."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.duplicates: list[tuple[int, str]] = []  # line, key

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        """Return the node of a mapping, before the entries of its merge keys (``<<``) join it."""
        node, seen = super().compose_mapping_node(anchor), set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                self.duplicates.append((key.start_mark.line + 1, key.value))
            seen.add((key.tag, key.value if isinstance(key, yaml.ScalarNode) else id(key)))
        return node


def parse_yaml(text: str, on_duplicate: OnDuplicate | None = None) -> Any:
    """Return the content of a YAML text.

    Args:
        text (str): YAML.
        on_duplicate (callable, optional): called with line and key for each key that a mapping has twice, of which the
            later counts. ``None``: a duplicate is an error. (default: ``None``)

    Raises:
        ConfigError: not valid, a key twice, or more than `MAX_VALUES` values by aliases; begins with line:column.
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
        raise ConfigError(
            f"not valid YAML: it is nested more than {MAX_DEPTH} deep: write `group: {{key: value}}`"
        ) from error
    except (ValueError, OverflowError) as error:  # a date with month 99, a number of 5,000 digits
        raise ConfigError(f"not valid YAML ({error}): quote this value or write another") from error
    _check_size(content)
    for line, key in loader.duplicates:
        if on_duplicate is None:
            raise ConfigError(f"{line}: the key {key!r} is there twice in one mapping: delete one")
        on_duplicate(line, key)
    return content


def parse_overrides(arguments: Sequence[str], on_duplicate: OnDuplicate | None = None) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of a command-line tail ``[key, value, ...]``; values are YAML: ``1e-3``, ``true``."""
    flags = [argument for argument in arguments if argument.startswith("--")]
    if flags:
        raise ConfigError(f"the command line: {flags[0]} is in the place of a key or its value: give each key one")
    if len(arguments) % 2:
        raise ConfigError(f"the command line: keys and values come in pairs, {arguments[-1]!r} has no partner")
    for key, value in zip(arguments[::2], arguments[1::2], strict=True):
        try:
            yield key, parse_yaml(value, on_duplicate) if value.strip() else ""  # as a shell writes no text, not null
        except ConfigError as error:
            raise ConfigError(
                f"the command line: {key}: its value {reprlib.repr(value)} cannot be read ({error}): quote it"
            ) from error


def _check_size(content: Any) -> None:
    todo, seen = [(content, 0)], 0
    while todo:
        value, depth = todo.pop()
        seen += 1
        if seen > MAX_VALUES:
            raise ConfigError(f"more than {MAX_VALUES:,} values: no config has so many, look at its aliases")
        if isinstance(value, (dict, list, tuple)) and depth <= MAX_DEPTH:  # deeper: `flatten` says where
            todo += [(item, depth + 1) for item in (value.values() if isinstance(value, dict) else value)]


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
    text = _read_text(file, f"{named_by}: " if named_by else "", error_type)
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


def _read_text(file: Path, named_by: str, error_type: type[UserError]) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        siblings = [path.name for path in file.parent.glob("*.y*ml")] if file.parent.is_dir() else []
        hint = near_misses(file.name, siblings) or " Give the path of a YAML file there is."
        raise error_type(f"{named_by}{file}: there is no such config file.{hint}") from None
    except IsADirectoryError:
        raise error_type(f"{named_by}{file}: this is a directory: give a YAML file in it") from None
    except UnicodeDecodeError as error:
        raise error_type(f"{file}: not UTF-8 text ({error.reason} at byte {error.start}): save it as UTF-8") from error
    except OSError as error:
        raise error_type(f"{named_by}{file}: cannot be read ({error.strerror or error}): check the path") from error
