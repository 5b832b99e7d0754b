"""run/check_configs.py: files that run, files that do not and say why, and faults that are not the file's."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from run.check_configs import check, main

from run import check_configs
from tests.two_stages import write_both

DIGITS = Path(__file__).parents[2] / "configs" / "quickstart" / "digits-kmip.yaml"


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"base: {DIGITS}\ngt: {{layers: 1}}\n{text}")
    return path


def test_files_are_counted_and_told_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = write(tmp_path / "a" / "runs.yaml")
    write(tmp_path / "b" / "loads_not.yaml", "optim: {max_epochs: 3}\n")
    write(tmp_path / "b" / "builds_not.yaml", "gnn: {head: node}\n")
    assert main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(f"yes  {runs}: ours, ")
    assert "builds_not.yaml: build: gnn.head: node does not fit" in lines[1]
    assert "loads_not.yaml: load: " in lines[2]
    assert "Did you mean optim.max_epoch" in lines[2]
    assert lines[3] == "1 of 3 run"
    assert main([str(runs)]) == 0
    assert main([str(tmp_path), "--only", "nothing"]) == 2


def test_a_sparse_network_runs_on_its_estimators_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_both(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    outcome = check(file)
    assert (outcome.stage, outcome.why) == ("runs", "")
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "narrow.yaml").unlink()
    assert "spexphormer.estimator: there is no file" in check(file).why


def test_a_loss_that_is_not_finite_is_no_success(tmp_path: Path) -> None:
    file = write(tmp_path / "run.yaml", "optim: {optimizer: sgd, base_lr: 1.0e30, clip_grad_norm: False}\n")
    outcome = check(file)
    assert outcome.stage == "train"
    assert outcome.why


def test_a_fault_of_the_package_is_not_told_as_one_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(check_configs, "create_optimizer", broken)
    with pytest.raises(KeyError, match="a bug"):
        check(write(tmp_path / "run.yaml"))
