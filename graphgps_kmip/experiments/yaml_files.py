"""YAML files of experiments and printed tables: a key that stands twice is an error, not the end of the first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import ManifestError

KINDS = {dict: "names and what they stand for", list: "a list", str: "text", int: "a whole number"}


class _Loader(yaml.SafeLoader):
    pass


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    names = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
    loader.flatten_mapping(node)
    for name in names:
        if names.count(name) > 1:
            raise yaml.constructor.ConstructorError(None, None, f"{name} stands twice", node.start_mark)
    return dict(loader.construct_pairs(node, deep=True))


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(file: Path) -> dict[Any, Any]:
    """Return the mapping that a YAML file holds; an empty file is an empty one.

    Raises:
        ManifestError: it cannot be read, is no mapping, or has a key twice.
    """
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), _Loader) or {}  # noqa: S506 (it is a SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ManifestError(f"{file}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ManifestError(f"{file}: expected names and what they stand for, found {type(content).__name__}")
    return content


def section(entry: Mapping[Any, Any], key: Any, where: str, kind: type = dict) -> Any:
    """Return the mapping, or what `kind` says, that stands under a key; empty if nothing does.

    Raises:
        ManifestError: something else stands there.
    """
    content = entry.get(key)
    if content is None:
        return kind()
    if not isinstance(content, kind):
        raise ManifestError(f"{where}, {key}: expected {KINDS[kind]}, found {content!r}")
    return content


def check_keys(entry: Mapping[str, Any], allowed: Iterable[str], where: str, needed: Iterable[str] = ()) -> None:
    """Check the keys of an entry.

    Raises:
        ManifestError: one that is not known, with near misses, or one that is missing.
    """
    if not isinstance(entry, Mapping):
        raise ManifestError(f"{where}: expected keys and values, found {entry!r}")
    allowed = set(allowed)
    for key in entry:
        if key not in allowed:
            raise ManifestError(f"{where}: unknown key {key!r}.{suggest(key, allowed)}")
    if missing := [key for key in needed if key not in entry]:
        raise ManifestError(f"{where}: {', '.join(missing)} missing")
