"""The wheel: what it holds, what it says of itself, and that it trains without a checkout."""

from __future__ import annotations

import ast
import re
import shutil
import sysconfig
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from graphgps_kmip import __version__
from tests.processes import python, run

ROOT = Path(__file__).parents[2]
NEEDED = ("graphgps_kmip", "configs", "run", "main.py", "setup.py", "pyproject.toml", "README.md", "LICENSE")
CACHES = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", "build")


def build(what: str, source: Path, into: Path) -> Path:
    code = f"from setuptools import build_meta; build_meta.build_{what}({str(into)!r})"
    into.mkdir(exist_ok=True)
    python("-c", code, cwd=source, check=True)
    return next(into.iterdir())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is built from, in a folder of its own: setuptools leaves its own files beside it."""
    folder = tmp_path_factory.mktemp("source")
    for name in NEEDED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name, **({"ignore": CACHES} if (ROOT / name).is_dir() else {}))
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def about(wheel: Path) -> Message:
    return Parser().parsestr(read(wheel, "METADATA"))


def read(wheel: Path, name: str) -> str:
    return zipfile.ZipFile(wheel).read(f"graphgps_kmip-{__version__}.dist-info/{name}").decode()


def names(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def files(folder: Path, *patterns: str) -> set[str]:
    paths = {path for pattern in patterns for path in folder.rglob(pattern) if path.is_file()}
    return {str(path.relative_to(folder.parent)) for path in paths}


def test_a_wheel_holds_package_configs_experiments_and_scripts(wheel: Path, source: Path) -> None:
    package = files(source / "graphgps_kmip", "*")
    assert {f"graphgps_kmip/{name}" for name in ("py.typed", "ops/native/simd.h", "report/page.html")} <= package
    shipped = {"main.py"} | files(source / "configs", "*.yaml")
    shipped |= files(source / "run", "*.py", "*.c", "*.yaml", "*.csv")
    shipped -= {"run/demo.py"}
    assert names(wheel) == package | {f"graphgps_kmip/shipped/{name}" for name in shipped}


def test_a_source_distribution_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", source, tmp_path / "sdist")) as packed:
        packed.extractall(tmp_path, filter="data")
    again = build("wheel", tmp_path / f"graphgps_kmip-{__version__}", tmp_path / "wheel")
    assert names(again) == names(wheel)


def test_the_metadata_is_right_and_names_no_address_that_does_not_exist(about: Message) -> None:
    assert about["License-Expression"] == "MIT"
    assert about["License-File"] == "LICENSE"
    assert about["Requires-Python"] == ">=3.11"
    assert about["Summary"]
    assert about["Description-Content-Type"] == "text/markdown"
    assert not about.get_all("Project-URL")
    assert not about.get_all("Home-page")


def test_the_console_commands_are_those_of_main_py_and_reproduce(wheel: Path) -> None:
    commands = dict(re.findall(r"^(\S+) = (\S+)$", read(wheel, "entry_points.txt"), re.M))
    assert commands == {
        "graphgps-kmip": "graphgps_kmip.command_line:run",
        "graphgps-kmip-reproduce": "graphgps_kmip.reproduce:main",
    }
    for name, value in commands.items():
        assert callable(EntryPoint(name, value, "console_scripts").load())


def test_every_public_function_has_the_annotations_that_py_typed_promises() -> None:
    bare = []
    for file in sorted((ROOT / "graphgps_kmip").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.FunctionDef) or (node.name.startswith("_") and node.name != "__init__"):
                continue
            if any("triton" in ast.unparse(decorator) for decorator in node.decorator_list):
                continue  # a GPU kernel: its arguments are pointers and numbers of the launch
            parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            missing = [row.arg for row in parameters if not row.annotation and row.arg not in ("self", "cls")]
            missing += [] if node.returns else ["what it returns"]
            bare += [f"{file.name}:{node.lineno} {node.name}: {name}" for name in missing]
    assert bare == []


@pytest.mark.slow
def test_an_installed_wheel_trains_and_reproduces_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """The environment has this one's packages, and no editable install: those are .pth files, read in site folders."""
    python("-m", "venv", "--without-pip", tmp_path / "venv", check=True)
    place = next((tmp_path / "venv/lib").glob("python3*")) / "site-packages"
    (place / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = ["-m", "pip", "--python", tmp_path / "venv/bin/python", "install", "--quiet"]
    python(*pip, "--no-deps", "--no-index", wheel, check=True)
    empty = tmp_path / "empty"
    empty.mkdir()

    def call(*argv: str, code: int = 0) -> str:
        command = [str(tmp_path / "venv/bin" / argv[0]), *argv[1:]]
        ended = run(command, cwd=empty, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    digits = "configs/quickstart/digits-kmip.yaml"
    output = call("graphgps-kmip", "--cfg", digits, "optim.max_epoch", "1", "gt.layers", "1")
    assert f"{digits}: no such file here, the package's own is read: {place}" in output
    assert (empty / "results/digits-kmip/0/record.json").exists()
    plan = call("graphgps-kmip-reproduce", "plan", "quickstart/digits", "--only", "model=GPS+kMIP", "--seeds", "1")
    assert plan.startswith(f"graphgps-kmip --cfg {digits} ")
    done = call(
        "graphgps-kmip-reproduce", "run", "quickstart/digits-analysis", "--sample", "--only", "command=distance"
    )
    assert "2 of 2 jobs are done" in done
    assert {path.name for path in empty.iterdir()} == {"results"}
    (empty / "run/experiments").mkdir(parents=True)
    (empty / "configs/quickstart").mkdir(parents=True)
    (empty / "configs/quickstart/mine.yaml").write_text(f"base: {digits}\n")
    cfg = "trainings: [{cfg: quickstart/mine.yaml, seeds: 1}, {cfg: quickstart/digits-gcn.yaml, seeds: 1}]"
    (empty / "run/experiments/mine.yaml").write_text(f"experiments: {{mine: {{title: Mine, {cfg}}}}}\n")
    assert "# mine: 2 jobs: 2 missing" in call("graphgps-kmip-reproduce", "plan", "mine")
    assert "error: --mark_done" in call("graphgps-kmip", "--cfg", digits, "--mark_done", code=2)
