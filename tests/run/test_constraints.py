"""constraints.txt pins all that is installed, setup.py names all that is imported, and ruff bans what it should."""

from __future__ import annotations

import ast
import re
import sys
from distutils.core import run_setup
from importlib.metadata import packages_distributions, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
PINS = dict(re.match(r"(\S+)==(\S+)", line).groups() for line in LINES)
OURS = Path(sys.prefix).resolve() == (ROOT / ".venv").resolve() and (ROOT / ".venv/stamp").exists()


@pytest.fixture(scope="module")
def setup():
    """What setup.py declares: (requirements, requirements by extra)."""
    declared = run_setup(str(ROOT / "setup.py"), stop_after="init")
    return declared.install_requires, declared.extras_require


def needed(requirement, seen):
    """Adds the names of all that a requirement needs on this machine, extras included, to `seen`."""
    extras = requirement.extras or {""}
    if (requirement.name, *sorted(extras)) in seen:
        return
    seen.add((requirement.name, *sorted(extras)))
    for text in requires(requirement.name) or []:
        inner = Requirement(text)
        if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
            needed(inner, seen)


def test_every_line_is_an_exact_pin_in_order_with_its_reason():
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]* +# \S.*", line) for line in LINES)
    assert list(PINS) == sorted(PINS)
    assert len(PINS) == len(LINES)


def test_the_direct_pins_are_the_requirements_of_setup_py(setup):
    always, extras = setup
    declared = {Requirement(text).name for text in [*always, *extras["test"], *extras["tensorboard"]]}
    direct = {line.split("==")[0] for line in LINES if "# direct: " in line}
    assert direct == declared | {"pip", "setuptools"}


def test_every_pin_is_allowed_by_setup_py(setup):
    always, extras = setup
    for text in [*always, *extras["test"], *extras["tensorboard"]]:
        assert PINS[Requirement(text).name] in Requirement(text).specifier


@pytest.mark.skipif(not OURS, reason="not the environment that run/setup_env.sh made")
def test_everything_installed_for_the_project_is_pinned_to_what_is_installed(setup):
    always, extras = setup
    seen = set()
    for text in [*always, *extras["test"], *extras["tensorboard"], "pip"]:
        needed(Requirement(text), seen)
    names = {name for name, *_ in seen}
    # A local label as in 2.13.0+cpu says which build of the pinned release it is.
    installed = {canonicalize_name(name): version(name).split("+")[0] for name in names}
    assert installed == {name: PINS.get(name) for name in installed}


def imported(path):
    """The top-level names that a file imports, also inside its functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0]


def test_every_import_of_the_package_is_a_requirement(setup):
    always, extras = setup
    declared = {Requirement(text).name for text in [*always, *(text for group in extras.values() for text in group)]}
    files = [*ROOT.glob("graphgps_kmip/**/*.py"), *ROOT.glob("*.py"), *ROOT.glob("run/**/*.py")]
    here = {"graphgps_kmip", "main", "run", "tests"} | {path.stem for path in ROOT.glob("run/*.py")}
    names = {name for path in files for name in imported(path)} - here - set(sys.stdlib_module_names)
    owners = packages_distributions()
    absent = {"faiss": "faiss-cpu"}  # optional, and not in the environment of the tests
    given_by = {name: owners.get(name, [absent.get(name, name)]) for name in names}
    missing = {name for name in names if not declared & {canonicalize_name(owner) for owner in given_by[name]}}
    assert missing - {"setuptools"} == set()
