"""Load a YAML file and command-line overrides into ``cfg``, with one clear line for each thing that can be wrong."""

from __future__ import annotations

import ast
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_geometric.graphgym.config import assert_cfg, set_cfg
from yacs.config import CfgNode

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.common.project import train_command
from graphgps_kmip.compat.dialect_detection import name_dialect
from graphgps_kmip.compat.dialects import in_dialect
from graphgps_kmip.compat.key_translation import log_unread, translate
from graphgps_kmip.compat.quirks import log_quirks
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config.config_ranges import check_ranges
from graphgps_kmip.gym.config.custom_modules import import_modules
from graphgps_kmip.gym.config.yaml_settings import flatten, parse_yaml, read_settings, read_yaml

__all__ = ["flatten", "load_config", "parse_overrides", "read_settings", "read_yaml"]

PLAIN = (str, int, float, list, tuple, type(None))


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
    origins = {}
    for key, value, origin in in_dialect(settings):
        if key != "custom_modules":
            ours, form = translate(key, value)
            _merge(cfg, ours, form, origin)
            origins[ours] = origin
    check_ranges(cfg, origins)
    log_unread(settings)
    cfg.custom_modules = modules
    if file is None:  # GraphGym's own defaults do not pass its own check
        return
    log_quirks(cfg)
    try:
        assert_cfg(cfg)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error


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
            yield key, parse_yaml(value) if value.strip() else ""  # as a shell writes no text, not null
        except ConfigError as error:
            raise ConfigError(
                f"the command line: {key}: its value {reprlib.repr(value)} cannot be read ({error}): quote it"
            ) from error


def _merge(cfg: CfgNode, key: str, value: Any, origin: str) -> None:
    *parents, leaf = key.split(".")
    node: Any = cfg
    for parent in parents:
        node = node.get(parent) if isinstance(node, CfgNode) else None
    if not isinstance(node, CfgNode) or leaf not in node:
        raise ConfigError(f"{origin}: unknown key {reprlib.repr(key)}.{_near_keys(cfg, key)}")
    if isinstance(node[leaf], CfgNode):
        if value is not None:  # an empty group in YAML reads as None and changes nothing
            raise ConfigError(f"{origin}: {key} is a group of keys, got the value {reprlib.repr(value)}")
        return
    node[leaf] = _coerce(value, node[leaf], f"{origin}: {key}")


def _coerce(value: Any, default: Any, where: str) -> Any:
    """Give a value the type of the default that it replaces, by yacs' rules, but an int may stand for a float."""
    if not isinstance(value, PLAIN):  # a date, a set, or a group where a value belongs
        raise ConfigError(
            f"{where}: expected a plain value, got {reprlib.repr(value)} ({type(value).__name__}): quote it"
        )
    if default is None or type(value) is type(default):
        return value
    if isinstance(value, str) and not isinstance(default, str):  # YAML 1.1 reads `1e-3` as a string
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # no number: refused below
            pass
    accepted = {float: (int, float), list: (list, tuple), tuple: (list, tuple)}.get(type(default), (type(default),))
    if isinstance(default, str) and isinstance(value, (int, float)):
        return str(value)  # a name made of digits
    if not isinstance(value, accepted) or (isinstance(value, bool) and not isinstance(default, bool)):
        got = f"{reprlib.repr(value)} ({type(value).__name__})"
        raise ConfigError(f"{where}: expected {type(default).__name__}, got {got}: change it, or leave it out")
    try:
        return type(default)(value)
    except OverflowError:
        raise ConfigError(f"{where}: expected float, got a whole number that is too large for one") from None


def _near_keys(cfg: CfgNode, key: str) -> str:
    keys = [one for one, _ in flatten(cfg)]
    leaf = key.rsplit(".", 1)[-1]
    same_leaf = [one for one in keys if one.rsplit(".", 1)[-1] == leaf]
    if same_leaf:  # right name, wrong group
        return f" Did you mean {' or '.join(same_leaf[:3])}?"
    hint = suggest(key, keys)
    return hint if "Did you mean" in hint else f" `{train_command()} --cfg FILE --dry-run` prints all keys."
