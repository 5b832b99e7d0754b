"""Layering of the package: which sub-package may import which, as CONTRIBUTING.md draws it; names and sizes of files.

Every import counts, those inside functions included.
"""

from __future__ import annotations

import ast
import functools
import graphlib
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "graphgps_kmip"
# Three rings: the core, fused operators beneath it, and extras around it, which the core does not import.
EXTRAS = {"compat", "experiments", "report", "testing", "expressivity"}
PLUGIN = {"gym"}  # it reads public files with compat, and runs BREC with expressivity
# Sub-package -> what it may import besides itself and `BOTTOM`: whole sub-packages, or single modules of one.
ARROWS = {
    "ops": set(),
    "search": {"ops"},
    "attention": {"search", "ops"},
    "mpnn": {"ops"},
    "encoding": {"ops"},
    "model": {"ops", "search.dispatch"},
    "compat": {"attention", "mpnn", "encoding", "model", "ops"},
    "task": {"ops"},
    "results": set(),
    "data": {"encoding", "ops"},
    "train": {"task", "results", "ops"},
    "experiments": {"results"},
    "expressivity": {"encoding", "ops"},
    "report": {"experiments", "results", "data.find"},
    "networks": {"attention", "mpnn", "encoding", "model", "ops"},
    "testing": {"attention", "mpnn", "search", "networks", "ops"},
    "gym": {
        *("networks", "compat", "attention", "mpnn", "encoding", "model", "task", "data", "train", "report"),
        *("results", "expressivity", "ops"),
    },
}
# What every module may import: it imports nothing above itself.
BOTTOM = {"__version__", "common", "errors", "ranges", "registry", "signatures"}
# Base names that several sub-packages may have.
SHARED_NAMES = {"__init__.py", "__main__.py"}
MAX_LINES = 450

FILES = sorted(PACKAGE.rglob("*.py"))


def sub_package(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own_imports(file: Path) -> set[str]:
    return {name.removeprefix("graphgps_kmip.") for name in imported(file) if name.startswith("graphgps_kmip.")}


def outside(names: set[str], allowed: set[str]) -> list[str]:
    return sorted(name for name in names if not any(f"{name}.".startswith(f"{prefix}.") for prefix in allowed))


@pytest.mark.parametrize("name", sorted({path.parent.name for path in PACKAGE.glob("*/__init__.py")} - BOTTOM))
def test_a_sub_package_imports_only_those_below_it(name: str) -> None:
    for file in (PACKAGE / name).rglob("*.py"):
        wrong = outside(own_imports(file), ARROWS[name] | {name} | BOTTOM)
        assert not wrong, f"{file.relative_to(PACKAGE)} must not import {', '.join(wrong)}"


def test_the_bottom_imports_nothing_above_itself() -> None:
    for file in FILES:
        if sub_package(file) in BOTTOM:
            assert not outside(own_imports(file), BOTTOM), file.relative_to(PACKAGE)


def test_the_arrows_form_no_circle() -> None:
    graph = {name: {module.partition(".")[0] for module in below} for name, below in ARROWS.items()}
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("name", sorted(set(ARROWS) - EXTRAS - PLUGIN))
def test_the_core_imports_no_extras(name: str) -> None:
    assert not {below.partition(".")[0] for below in ARROWS[name]} & (EXTRAS | PLUGIN)


def test_only_gym_imports_graphgym_and_yacs() -> None:
    for file in FILES:
        if sub_package(file) != "gym":
            foreign = {name for name in imported(file) if name.startswith(("torch_geometric.graphgym", "yacs"))}
            assert not foreign, f"{file.relative_to(PACKAGE)} imports {foreign}, which belongs in gym/"


def test_reports_and_results_import_no_model_code() -> None:
    for file in FILES:
        if sub_package(file) in ("report", "results"):
            foreign = {name for name in imported(file) if name.split(".")[0] in ("torch", "torch_geometric")}
            assert not foreign, f"{file.relative_to(PACKAGE)} imports {foreign}"


def test_a_base_name_is_there_once() -> None:
    places = defaultdict(list)
    for file in FILES:
        places[file.name].append(str(file.relative_to(PACKAGE)))
    assert not {name: files for name, files in places.items() if len(files) > 1 and name not in SHARED_NAMES}


def test_no_file_holds_more_than_one_concept_by_its_length() -> None:
    lengths = {str(file.relative_to(PACKAGE)): len(file.read_text().splitlines()) for file in FILES}
    assert not {name: length for name, length in lengths.items() if length > MAX_LINES}
