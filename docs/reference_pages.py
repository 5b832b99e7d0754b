"""Reference pages of the documentation site, written from the code: API, registered components, config keys."""

from __future__ import annotations

import importlib
import logging
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import graphgps_kmip as PACKAGE

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"


def write_pages() -> None:
    """Write all reference pages; one without a change keeps its time stamp, and Sphinx does not read it again."""
    pages = api_pages() | {"components": components_page(), "config": config_page()}
    (REFERENCE / "api").mkdir(parents=True, exist_ok=True)
    for old in REFERENCE.rglob("*.rst"):
        if str(old.relative_to(REFERENCE).with_suffix("")) not in pages:
            old.unlink()
    for name, lines in pages.items():
        file, text = REFERENCE / f"{name}.rst", "\n".join(lines) + "\n"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def escaped(text: str) -> str:
    r"""Return plain text such that ``*``, ``|`` and a trailing ``_`` outside of backticks are no markup."""
    bullet, text = re.match(r"(\s*\* )?(.*)", text, re.S).groups(default="")
    parts = re.split(r"(``.*?``|`[^`]*`)", text)
    parts[::2] = [re.sub(r"([*|]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2]]
    return bullet + "".join(parts)


def heading(text: str, line: str) -> list[str]:
    """Return a title of reStructuredText."""
    return [text, line * len(text), ""]


def table(titles: list[str], rows: list[list[str]]) -> list[str]:
    """Return a table of reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in [titles, *rows]:
        lines += [f"   {'*' if number == 0 else ' '} - {cell}" for number, cell in enumerate(row)]
    return [*lines, ""]


# ----------------------------------------------------------------------------------------------------------------- API


def api_pages() -> dict[str, list[str]]:
    """Return the overview of the packages and one page for each package of the tree, by name."""
    found = list(pkgutil.walk_packages(PACKAGE.__path__, f"{PACKAGE.__name__}."))
    packages = [PACKAGE.__name__, *sorted(one.name for one in found if one.ispkg)]
    modules = sorted(one.name for one in found if not one.ispkg and not one.name.endswith(".__main__"))
    inside = {package: [name for name in modules if name.rpartition(".")[0] == package] for package in packages}
    rows = [[f":doc:`{name} <api/{name}>`", escaped(summary(name))] for name in packages]
    overview = [
        *heading("API", "="),
        "Every package, from its docstrings. A page begins with one line for each module of its package.",
        "",
        *table(["package", "what is in it"], rows),
        *(".. toctree::", "   :hidden:", ""),
        *(f"   api/{name}" for name in packages),
    ]
    return {"api": overview} | {f"api/{name}": package_page(name, inside[name]) for name in packages}


def package_page(package: str, modules: list[str]) -> list[str]:
    """Return the page of one package: its public names, its modules with one line each, then all of their members."""
    page = [*heading(package, "="), f".. automodule:: {package}", "   :no-members:", ""]
    if names := public_names(package):
        page += [f"**Public names**: {', '.join(names)}", ""]
    page += [f"* :ref:`{module.split('.')[-1]} <{module}>`: {escaped(summary(module))}" for module in modules]
    for module in modules:
        page += ["", f".. _{module}:", "", *heading(module.split(".")[-1], "-")]
        page += [f".. automodule:: {module}", "   :members:", "   :ignore-module-all:"]
    return page


def summary(module: str) -> str:
    """Return the first line of a module's docstring."""
    return (importlib.import_module(module).__doc__ or "").strip().split("\n")[0]


def public_names(package: str) -> list[str]:
    """Return links to what a package offers in ``__all__``, at the place where it is defined."""
    module = importlib.import_module(package)
    found = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
    places = {
        name: f"{one.__module__}.{one.__qualname__}"
        for name, one in found.items()
        if hasattr(one, "__qualname__") and one.__module__.startswith(PACKAGE.__name__)
    }
    return [f":py:obj:`{name} <{place}>`" for name, place in places.items()]


# ------------------------------------------------------------------------------------------- components and config keys


def components_page() -> list[str]:
    """Return what ``--list`` prints, as tables."""
    command = [sys.executable, "-m", PACKAGE.__name__, "--list"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    page = [*heading("Components", "="), "Everything that is registered, as ``python main.py --list`` prints it.", ""]
    for block in text.strip().split("\n\n"):
        title, *rows = block.split("\n")
        cells = [re.split(r"  +", row.strip(), maxsplit=1) for row in rows]
        page += heading(title[:1].upper() + title[1:], "-")
        page += table(["name", "what it is"], [[f"``{name}``", escaped("".join(text))] for name, *text in cells])
    return page


def config_page() -> list[str]:
    """Return every config key with its default, a table for each group."""
    from torch_geometric.graphgym.config import cfg, set_cfg  # noqa: TID251

    logging.getLogger().setLevel(logging.WARNING)  # registering logs the names that GraphGym had before
    importlib.import_module(f"{PACKAGE.__name__}.gym")
    set_cfg(cfg)
    groups = {"": []}
    for key, value in flat(cfg):
        groups.setdefault(key.rpartition(".")[0], []).append([f"``{key}``", f"``{value!r}``"])
    page = [
        *heading("Config keys", "="),
        "Every key of a YAML file with its default. Keys are those of GraphGym and GraphGPS where these have one;",
        "the options of a component are its config group, explained where the component is: :doc:`api`.",
        "Any of them can follow ``--cfg FILE`` on the command line; other names are refused with near misses.",
        "",
    ]
    for group, rows in groups.items():
        page += heading(group or "Top level", "-") + table(["key", "default"], rows)
    return page


def flat(node: dict, prefix: str = "") -> list[tuple[str, object]]:
    """Return the leaves of a nested config as (dotted key, value)."""
    leaves = []
    for key, value in node.items():
        leaves += flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return leaves
