"""The user's own Python files (``custom_modules``): imported by path or name before the config is checked."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.ranges import Each, Text, refusal


def import_modules(names: list[str] | str, folder: Path) -> list[str]:
    """Import modules that register components; return the path of each, or the name of an installed one.

    Args:
        names: each a path (with or without ``.py``) relative to ``folder`` or to the current folder, or the dotted
            name of an importable module.
        folder: where the YAML file lies; tried first.

    Raises:
        ConfigError: no such file or module, or its name is taken. What the user's own code raises passes through.
    """
    names = [names] if isinstance(names, str) else names
    rule = Each(Text(empty=False))
    if why := refusal(rule, names):
        raise ConfigError(f"custom_modules: {why} Name Python files or modules, as in custom_modules: [my_file]")
    found = []
    for name in names:
        path = _module_file(name, folder)
        _import_installed(name, folder) if path is None else _import_file(path)
        found.append(name if path is None else str(path))
    return found


def _module_file(name: str, folder: Path) -> Path | None:
    """Return the file that an entry names, or None if it must be the name of an installed module."""
    stem = name.removesuffix(".py")
    paths = [base / f"{path}.py" for path in (stem, stem.replace(".", "/")) for base in (folder, Path.cwd())]
    return next((path.resolve() for path in paths if path.is_file()), None)


def _import_file(path: Path) -> ModuleType:
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded  # its registrations stand already
    if loaded is not None or path.stem in sys.stdlib_module_names:
        raise ConfigError(f"custom_modules: {path} has the name of another module, {path.stem}: rename the file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # before execution, as for any import: its classes can be pickled
    try:
        spec.loader.exec_module(module)  # what the user's code raises is theirs to see, traceback and all
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _import_installed(name: str, folder: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.split(".")[0] == error.name.split(".")[0]:
            places = f"{folder.resolve()} and {Path.cwd()}"
            raise ConfigError(f"custom_modules: no file or module {name!r} (looked in {places})") from error
        raise
