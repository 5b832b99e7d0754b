"""The import arrows of the house: which room may use which."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "graphgps_kmip"
ROOMS = {
    "native": set(),
    "search": {"native"},
    "attention": {"search", "native"},
    "mpnn": {"native"},
    "encoding": {"native"},
    "model": {"attention.context", "search.search_memo"},
    "common": set(),
    "results": set(),
    "task": set(),
    "compat": {"attention", "mpnn", "model"},
    "data": {"encoding", "task.task"},
    "train": {"task.task", "results"},
    "experiments": {"results"},
    "expressivity": {"encoding"},
    "analysis": {"attention", "search"},
    "report": {"experiments", "results"},
    "networks": {"attention", "mpnn", "encoding", "model", "compat"},
    "gym": {
        *("networks", "compat", "search", "attention", "mpnn", "encoding", "model", "task", "data", "train", "report"),
        "results",
    },
}
# Modules at the top of the package that every package may use.
SHARED = {
    "__version__",
    "common",
    "errors",
    "ranges",
    "registry",
    "signatures",
}
FILES = sorted(PACKAGE.rglob("*.py"))


def imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_imports_only_what_its_room_may_use(file: Path) -> None:
    room = file.relative_to(PACKAGE).parts[0]
    if room.endswith(".py"):
        return
    allowed = ROOMS[room] | {room} | SHARED
    for name in imported(file):
        if name.startswith("graphgps_kmip."):
            inner = name.removeprefix("graphgps_kmip.")
            assert any(inner == one or inner.startswith(f"{one}.") for one in allowed), (
                f"{room} must not import {inner}"
            )


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_only_the_gym_knows_graphgym_and_yacs(file: Path) -> None:
    if file.relative_to(PACKAGE).parts[0] != "gym":
        foreign = {name for name in imported(file) if name.startswith(("torch_geometric.graphgym", "yacs"))}
        assert not foreign, f"{foreign} belongs in gym/"


@pytest.mark.parametrize(
    "file", [f for f in FILES if f.relative_to(PACKAGE).parts[0] in ("report", "results")], ids=lambda f: f.name
)
def test_reports_read_results_and_import_no_model_code(file: Path) -> None:
    assert not {name for name in imported(file) if name.split(".")[0] in ("torch", "torch_geometric")}
