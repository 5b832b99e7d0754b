"""Load a YAML file and command-line overrides into ``cfg``, with one clear line for each thing that can be wrong."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from torch_geometric.graphgym.config import assert_cfg, set_cfg
from yacs.config import CfgNode

from graphgps_kmip.gym.compat import name_dialect, translate
from graphgps_kmip.gym.compat_keys import log_unread
from graphgps_kmip.gym.dialect import in_dialect
from graphgps_kmip.gym.errors import ConfigError
from graphgps_kmip.gym.modules import import_modules
from graphgps_kmip.gym.quirks import log_quirks
from graphgps_kmip.names import suggest
from graphgps_kmip.project import find_config, train_command


def load_config(cfg: CfgNode, file: str | Path | None, overrides: list[str]) -> None:
    """Reset ``cfg``, then merge a YAML file and the command line's ``key value`` pairs into it.

    Args:
        cfg: GraphGym's config, changed in place and left open for changes.
        file: YAML file; None: the defaults.
        overrides: command-line tail, ``[key, value, key, value, ...]``; it wins over the file.

    Raises:
        ConfigError: the file is missing or no YAML; a key is unknown; a value has the wrong type; a custom module
            cannot be imported.
    """
    file = Path(file) if file else None
    settings = name_dialect(read_settings(file)) if file else []
    settings += [(key, value, "the command line") for key, value in parse_overrides(overrides)]
    named = [value for key, value, _ in settings if key == "custom_modules"]
    folder = file.parent if file else Path()
    modules = import_modules(named[-1] or [] if named else [], folder)  # before set_cfg makes the groups
    cfg.defrost()
    set_cfg(cfg)
    for key, value, origin in in_dialect(settings):
        if key != "custom_modules":
            _merge(cfg, *translate(key, value), origin)
    log_unread(settings)
    cfg.custom_modules = modules
    if file is None:  # GraphGym's own defaults do not pass its own check
        return
    log_quirks(cfg)
    try:
        assert_cfg(cfg)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error


def read_settings(file: Path, readers: tuple[Path, ...] = ()) -> list[tuple[str, Any, str]]:
    """Return (dotted key, value, file) for each setting of a YAML file, those of its ``base:`` file before its own.

    Args:
        file: a YAML file; ``base: other.yaml`` in it is relative to its own folder.
        readers: files whose base this is, to tell a circle.
    """
    content = read_yaml(file)
    base = content.pop("base", None)
    own = [(key, value, str(file)) for key, value in flatten(content)]
    if base is None:
        return own
    base = find_config(Path(str(base)), file.parent)
    if any(base.resolve() == reader.resolve() for reader in (file, *readers)):
        raise ConfigError(f"{file}: base: {base} leads back here: a file cannot be its own base")
    return read_settings(base, (*readers, file)) + own


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        ConfigError: missing, unreadable, no YAML (line and column), or no mapping.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        siblings = [path.name for path in file.parent.glob("*.y*ml")] if file.parent.is_dir() else []
        hint = suggest(file.name, siblings) if siblings else ""
        raise ConfigError(f"{file}: no such config file (--cfg).{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read ({error}): give a readable YAML file to --cfg") from error
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        raise ConfigError(f"{place}: not valid YAML ({getattr(error, 'problem', error)}): mend this line") from error
    if content is None:
        raise ConfigError(f"{file}: says nothing, it is empty or holds comments only: give it `key: value` lines")
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: expected `key: value` lines, found {type(content).__name__}")
    return content


def flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for each leaf of nested mappings."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def parse_overrides(words: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of a command-line tail; values are read as YAML, so ``1e-3``, ``true`` and ``[1, 2]`` work.

    Raises:
        ConfigError: a flag stands in the tail, a value is missing, or a value is no YAML.
    """
    flags = [word for word in words if word.startswith("--")]
    if flags:
        raise ConfigError(f"the command line: {flags[0]} is unknown or stands behind a key: flags come before the keys")
    if len(words) % 2:
        raise ConfigError(f"the command line: keys and values come in pairs, {words[-1]!r} has no partner")
    for key, value in zip(words[::2], words[1::2], strict=True):
        try:
            yield key, yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"the command line: the value of {key}, {value!r}, cannot be read: quote it") from error


def _merge(cfg: CfgNode, key: str, value: Any, origin: str) -> None:
    *parents, leaf = key.split(".")
    node: Any = cfg
    for parent in parents:
        node = node.get(parent) if isinstance(node, CfgNode) else None
    if not isinstance(node, CfgNode) or leaf not in node:
        raise ConfigError(f"{origin}: unknown key {key!r}.{_near_keys(cfg, key)}")
    if isinstance(node[leaf], CfgNode):
        if value is not None:  # an empty group in YAML reads as None and changes nothing
            raise ConfigError(f"{origin}: {key} is a group of keys, got the value {value!r}")
        return
    node[leaf] = _coerce(value, node[leaf], f"{origin}: {key}")


def _coerce(value: Any, default: Any, where: str) -> Any:
    """Give a value the type of the default that it replaces, by yacs' rules, but an int may stand for a float."""
    if default is None or type(value) is type(default):
        return value
    if isinstance(value, str) and not isinstance(default, str):  # YAML 1.1 reads `1e-3` as a string
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            pass
    accepted = {float: (int, float), list: (list, tuple), tuple: (list, tuple)}.get(type(default), (type(default),))
    if isinstance(default, str) and isinstance(value, (int, float)):
        return str(value)  # a name made of digits
    if not isinstance(value, accepted) or (isinstance(value, bool) and not isinstance(default, bool)):
        raise ConfigError(f"{where}: expected {type(default).__name__}, got {value!r} ({type(value).__name__})")
    return type(default)(value)


def _near_keys(cfg: CfgNode, key: str) -> str:
    keys = [one for one, _ in flatten(cfg)]
    leaf = key.rsplit(".", 1)[-1]
    same_leaf = [one for one in keys if one.rsplit(".", 1)[-1] == leaf]
    if same_leaf:  # right name, wrong group
        return f" Did you mean {' or '.join(same_leaf[:3])}?"
    hint = suggest(key, keys)
    return hint if "Did you mean" in hint else f" `{train_command()} --cfg FILE --dry-run` prints all keys."
