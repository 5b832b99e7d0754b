"""run/compare.py: it prints the folders that it trained, and refuses two configs that would share one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import main
from tests.test_main import DIGITS, SHORT

Capture, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch


pytestmark = pytest.mark.usefixtures("few_digits")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def compare(monkeypatch: Patch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_script", ROOT / "run/compare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.subprocess, "call", lambda command: main.run([str(word) for word in command[2:]]))
    return module


def yaml_file(folder: Path, name: str = "x", **settings: Any) -> str:
    folder.mkdir(exist_ok=True)
    lines = "".join(f"{key}: {value}\n" for key, value in settings.items())
    (folder / f"{name}.yaml").write_text(f"base: {DIGITS}\n{lines}")
    return str(folder / f"{name}.yaml")


def test_a_name_tag_leads_to_its_table(compare: ModuleType, tmp_path: Path, capsys: Capture) -> None:
    file, out = yaml_file(tmp_path / "a"), tmp_path / "results"
    argv = [file, "--repeat", "1", "--out_dir", str(out), "--set", *SHORT]
    assert compare.main(argv) == 0
    assert compare.main([*argv, "name_tag", "few", "gt.kmip.k", "1"]) == 0
    assert "x-few" in capsys.readouterr().out.splitlines()[-1]
    assert {path.name for path in out.iterdir()} == {"x", "x-few"}


def test_two_files_of_equal_name_are_refused(compare: ModuleType, tmp_path: Path, capsys: Capture) -> None:
    files = [yaml_file(tmp_path / "a"), yaml_file(tmp_path / "b")]
    assert compare.main([*files, "--out_dir", str(tmp_path / "results")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(name in error for name in (*files, "name_tag"))
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(("argv", "hint"), [(["--set", "name_tag", "../x"], "name_tag"), (["--set", "seed"], "seed")])
def test_a_mistake_is_one_line(
    compare: ModuleType, argv: list[str], hint: str, tmp_path: Path, capsys: Capture
) -> None:
    assert compare.main([yaml_file(tmp_path / "a"), *argv]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert hint in error


@pytest.mark.parametrize("argv", [("--set", "dataset.sample", "True"), ()])
def test_sample_data_are_refused(compare: ModuleType, argv: tuple[str, ...], tmp_path: Path, capsys: Capture) -> None:
    settings = {} if argv else {"dataset": "{sample: True}"}
    files = [yaml_file(tmp_path / "a", "a"), yaml_file(tmp_path / "b", "b", **settings)]
    compare.subprocess.call = lambda _: pytest.fail("trained")
    assert compare.main([*files, "--out_dir", str(tmp_path / "results"), *argv]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "dataset.sample" in error
