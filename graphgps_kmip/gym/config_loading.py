"""Config loading: a YAML file, its base file and custom modules, and command-line overrides into GraphGym's config."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import logging
import reprlib
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch_geometric.graphgym.config import assert_cfg, set_cfg
from yacs.config import CfgNode

from graphgps_kmip.common import yaml_files
from graphgps_kmip.common.environment import find_config, train_command
from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.common.yaml_files import flatten
from graphgps_kmip.compat.dialects import in_dialect, log_quirks, name_dialect
from graphgps_kmip.compat.key_translation import log_unread, translate
from graphgps_kmip.data.splits import FOLDS
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_defaults import check_ranges, set_defaults
from graphgps_kmip.ranges import Each, Text, refusal

ALL = "all"  # of run_multiple_splits: the folds of dataset.split_mode


def read_settings(file: Path, readers: tuple[Path, ...] = ()) -> list[tuple[str, Any, str]]:
    """Return (dotted key, value, file) for each setting of a YAML file, those of its ``base:`` file before its own.

    ``base: other.yaml`` is relative to the file's own folder; ``readers`` are the files whose base this is.
    """
    content = read_yaml(file, f"{readers[-1]}: base" if readers else "--cfg")
    base = content.pop("base", None)
    settings = [(key, value, str(file)) for key, value in flatten(content)]
    if base is None:
        return settings
    if not isinstance(base, str):
        raise ConfigError(f"{file}: base: expected the path of a YAML file, got {reprlib.repr(base)}")
    base = find_config(Path(base), file.parent)
    if any(base.resolve() == reader.resolve() for reader in (file, *readers)):
        raise ConfigError(f"{file}: base: {base} leads back here: a file cannot be its own base")
    return read_settings(base, (*readers, file)) + settings


def read_yaml(file: Path, named_by: str = "--cfg") -> dict[str, Any]:
    """Return the mapping in a YAML file; the log names each key that one group has twice, as public files do."""
    return yaml_files.read_yaml(file, named_by, on_duplicate=partial(_warn_of_duplicate, f"{file}:"))


def _warn_of_duplicate(where: str, line: int, key: str) -> None:
    logging.warning(
        "config: %s%d: %s is there twice in one group, and only the later one counts: delete one",
        where, line, reprlib.repr(key),
    )  # fmt: skip


def import_modules(names: list[str] | str, folder: Path) -> list[str]:
    """Import modules that register components; return the path of each, or the name of an installed one.

    A name is a path relative to ``folder`` or to the current folder, or the dotted name of an importable module.
    """
    names = [names] if isinstance(names, str) else names
    if why := refusal(Each(Text(empty=False)), names):
        raise ConfigError(f"custom_modules: {why} Name Python files or modules, as in custom_modules: [my_file]")
    modules = []
    for name in names:
        stem = name.removesuffix(".py")
        paths = [base / f"{path}.py" for path in (stem, stem.replace(".", "/")) for base in (folder, Path.cwd())]
        file = next((path.resolve() for path in paths if path.is_file()), None)
        modules.append(name if file is None else str(file))
        try:
            importlib.import_module(name) if file is None else _import_file(file)
        except ModuleNotFoundError as error:
            if file is not None or not error.name or name.split(".")[0] != error.name.split(".")[0]:
                raise  # a module that the user's own code imports
            places = f"{folder.resolve()} and {Path.cwd()}"
            raise ConfigError(f"custom_modules: no file or module {name!r} (looked in {places})") from error
    return modules


def _import_file(path: Path) -> None:
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return
    if loaded is not None or path.stem in sys.stdlib_module_names:
        raise ConfigError(f"custom_modules: {path} has the name of another module, {path.stem}: rename the file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # before execution, as for any import: its classes can be pickled
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise


def load_config(cfg: CfgNode, file: str | Path | None, overrides: list[str]) -> None:
    """Reset ``cfg``, then merge a YAML file and the command line's ``key value`` pairs into it.

    Args:
        cfg: GraphGym's config, changed in place and left open for changes.
        file: YAML file; None: the defaults.
        overrides: command-line tail, ``[key, value, key, value, ...]``; it wins over the file.

    Raises:
        ConfigError: a mistake in the file, a key, a value or a custom module.
    """
    file = Path(file) if file else None
    settings = name_dialect(read_settings(file)) if file else []
    settings += [(key, value, "the command line") for key, value in parse_overrides(overrides)]
    enter_settings(cfg, settings, file)


def enter_settings(cfg: CfgNode, settings: list[tuple[str, Any, str]], file: Path | None) -> None:
    """Reset ``cfg``, then enter settings, (key, value, origin), of which the last of a key counts."""
    names = [value for key, value, _ in settings if key == "custom_modules"]
    folder = file.parent if file else Path()
    modules = import_modules(names[-1] or [] if names else [], folder)  # before set_cfg makes the groups
    cfg.defrost()
    cfg.clear()  # of keys of components that are no longer registered
    set_cfg(cfg)
    set_defaults(cfg)  # ours, whatever other packages have declared
    origins = {}
    settings = in_dialect(settings)
    splits = [(value, origin) for key, value, origin in settings if key == "run_multiple_splits"]
    for key, value, origin in settings:
        if key != "custom_modules" and (key, value) != ("run_multiple_splits", ALL):
            key, value = translate(key, value)
            _merge(cfg, key, value, origin)
            origins[key] = origin
    if splits and splits[-1][0] == ALL:
        cfg.run_multiple_splits = _list_folds(cfg.dataset.split_mode, splits[-1][1])
    check_ranges(cfg, origins)
    log_unread(settings)
    cfg.custom_modules = modules
    cfg.spexphormer.estimator = _find_file(cfg.spexphormer.estimator, origins.get("spexphormer.estimator", ""), file)
    if file is None:  # GraphGym's own defaults do not pass its own check
        return
    log_quirks(cfg)
    try:
        assert_cfg(cfg)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error


def _list_folds(split_mode: str, origin: str) -> list[int]:
    folds = FOLDS.fullmatch(split_mode)
    if not folds:
        raise ConfigError(
            f"{origin}: run_multiple_splits: all are those of dataset.split_mode cv-kfold-N or cv-stratifiedkfold-N, "
            f"which is {split_mode}: list the splits, as in [0, 1, 2]"
        )
    return list(range(int(folds[2])))


def _find_file(path: str, origin: str, file: Path | None) -> str:
    if not path or Path(path).is_absolute():
        return path
    places = [Path(reader).parent / path for reader in (origin, file) if reader and Path(reader).suffix]
    return str(next((place for place in places if place.is_file()), path))


def parse_overrides(arguments: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of a command-line tail, see `yaml_files.parse_overrides`."""
    return yaml_files.parse_overrides(arguments, partial(_warn_of_duplicate, "line "))


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
    """Give a value the type of the default that it replaces, by yacs' rules, but a float may be an int."""
    if default is None or type(value) is type(default):
        return value
    if isinstance(value, str) and not isinstance(default, str):  # YAML 1.1 reads `1e-3` as a string
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):  # no number: refused below
            pass
    accepted = {float: (int, float), list: (list, tuple), tuple: (list, tuple)}.get(type(default), (type(default),))
    if isinstance(default, str) and isinstance(value, (int, float)):
        return str(value)  # a name made of digits
    if not isinstance(value, accepted) or (isinstance(value, bool) and not isinstance(default, bool)):
        got = f"{reprlib.repr(value)} ({type(value).__name__})"
        raise ConfigError(f"{where}: expected {type(default).__name__}, got {got}: change it, or leave it out")
    return type(default)(value)


def _near_keys(cfg: CfgNode, key: str) -> str:
    keys = [key for key, _ in flatten(cfg)]
    leaf = key.rsplit(".", 1)[-1]
    same_leaf = [other for other in keys if other.rsplit(".", 1)[-1] == leaf]
    if same_leaf:  # right name, wrong group
        return f" Did you mean {' or '.join(same_leaf[:3])}?"
    hint = suggest(key, keys)
    return hint if "Did you mean" in hint else f" `{train_command()} --cfg FILE --dry-run -v` prints all keys."
