"""Both stages of the low-width method by one command: estimator, scores, sparse network; killed, repeated, by split."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from graphgps_kmip.data.score_file import read_scores
from tests.processes import preloaded, python
from tests.two_stages import KMIP, record, sample, train, train_once, write, write_both

pytestmark = pytest.mark.usefixtures("small_samples")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both YAML files and, in ``out-sample``, the results of one command; to be read only."""
    folder = tmp_path_factory.mktemp("trained")
    train_once(write_both(folder), folder / "out")
    return folder


def lines(out: Path, name: str, split: str, run: str = "0") -> list[dict[str, Any]]:
    text = (sample(out) / name / run / split / "stats.json").read_text()
    statistics = [json.loads(line) for line in text.splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith(("time", "eta"))} for line in statistics]


def everything(out: Path, run: str = "0") -> list[list[dict[str, Any]]]:
    return [lines(out, name, split, run) for name in ("narrow", "wide") for split in ("train", "val", "test")]


def test_one_command_trains_the_estimator_writes_its_scores_and_trains_the_sparse_network(trained: Path) -> None:
    out = trained / "out"
    narrow, wide = record(out, "narrow"), record(out, "wide")
    assert (narrow["finished"], wide["finished"]) == (True, True)
    assert narrow["scores"] == "scores.pt"
    scores = read_scores(sample(out) / "narrow" / "0" / "scores.pt")
    assert len(scores.layers) == 2
    assert scores.facts["settings"] == narrow["experiment"]
    assert scores.facts["epoch"] == narrow["best"]["epoch"]
    written = yaml.safe_load((sample(out) / "wide" / "0" / "config.yaml").read_text())
    assert written["spexphormer"]["estimator_hash"] == narrow["experiment"]


def test_the_commands_of_both_stages_one_after_the_other_give_the_same_numbers(trained: Path, tmp_path: Path) -> None:
    wide = write_both(tmp_path)
    assert train(tmp_path / "narrow.yaml", tmp_path / "out") == 0
    assert not (sample(tmp_path / "out") / "wide").exists()
    assert train(wide, tmp_path / "out") == 0
    assert everything(tmp_path / "out") == everything(trained / "out")
    assert record(tmp_path / "out", "wide")["config_hash"] == record(trained / "out", "wide")["config_hash"]


def test_the_same_command_again_trains_nothing_even_without_the_scores(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sample(trained / "out") / "narrow" / "0" / "scores.pt"
    content = path.read_bytes()
    path.unlink()
    try:
        assert train(trained / "wide.yaml", trained / "out") == 0
        assert "epoch 1/" not in capsys.readouterr().out
        assert not path.exists()  # nobody needs them
    finally:
        path.write_bytes(content)


def test_scores_that_are_lost_are_written_for_a_further_seed_without_training(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sample(trained / "out"), sample(tmp_path / "out"))
    (sample(tmp_path / "out") / "narrow" / "0" / "scores.pt").unlink()
    assert train(trained / "wide.yaml", tmp_path / "out", flags=("--repeat", "2")) == 0
    printed = capsys.readouterr().out
    assert ("narrow/0 loss" in printed, "wide/0 loss" in printed, "wide/1 loss" in printed) == (False, False, True)
    before, after = (
        read_scores(sample(folder / "out") / "narrow/0/scores.pt").layers for folder in (trained, tmp_path)
    )
    assert all(torch.equal(new.score, old.score) for new, old in zip(after, before, strict=True))


def test_several_seeds_share_one_estimator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["optim.max_epoch", "1", "spexphormer.estimator_seed", "4"]
    assert train(write_both(tmp_path), tmp_path / "out", *argv, flags=("--repeat", "2")) == 0
    assert capsys.readouterr().out.count("epoch 1/3 narrow/4") == 1
    assert sorted(path.name for path in (sample(tmp_path / "out") / "narrow").glob("[0-9]*")) == ["4"]
    assert record(tmp_path / "out", "narrow", "4")["seed"] == 4
    assert [record(tmp_path / "out", "wide", run)["seed"] for run in "01"] == [0, 1]


def test_each_split_has_an_estimator_of_its_own(tmp_path: Path) -> None:
    file = write_both(tmp_path, {"dataset.split_mode": "cv-kfold-4"}, {"dataset.split_mode": "cv-kfold-4"})
    out = tmp_path / "out"
    assert train(file, out, "run_multiple_splits", "[0,2]", "optim.max_epoch", "1") == 0
    facts = [read_scores(sample(out) / "narrow" / split / "scores.pt").facts for split in "02"]
    assert facts[0]["data"] == facts[1]["data"]
    assert facts[0]["split"] != facts[1]["split"]
    assert [record(out, "narrow", split)["seed"] for split in "02"] == [0, 0]
    assert record(out, "wide", "2")["finished"]
    scores_dir = str(sample(out) / "narrow")
    argv = "run_multiple_splits [0,2] optim.max_epoch 1 name_tag given spexphormer.scores".split() + [scores_dir]
    assert train(file, out, *argv) == 0  # of a results folder, the run of the split counts
    for split in "02":
        assert lines(out, "wide-given", "train", split) == lines(out, "wide", "train", split)


KILLED = """
import os, signal, sys
import graphgps_kmip.train.checkpoint as checkpointer
from graphgps_kmip.data import synthetic_sample
synthetic_sample.MAX_NODES_OF_ONE = 300
keep = checkpointer.Checkpointer.keep
def killing(self, state, new_best):
    keep(self, state, new_best)
    if self.run_dir.parent.name == sys.argv[1] and state.epoch == 1:
        os.kill(os.getpid(), signal.SIGKILL)
checkpointer.Checkpointer.keep = killing
import main
main.run(sys.argv[2:])
"""


@pytest.mark.parametrize("stage", ["narrow", "wide"])
def test_a_command_killed_in_either_stage_goes_on_where_it_was_and_ends_with_the_same_numbers(
    stage: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = write_both(tmp_path), tmp_path / "out"
    killed = preloaded("-c", KILLED, stage, "--cfg", str(file), "out_dir", str(out))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (sample(out) / "wide").exists() == (stage == "wide")
    assert train(file, out) == 0
    printed = capsys.readouterr().out
    assert f"epoch 3/3 {stage}/0" in printed
    assert f"epoch 2/3 {stage}/0" not in printed
    assert everything(out) == everything(trained / "out")
    assert record(out, stage)["resumes"] == 1


def test_overwrite_repeats_the_sparse_network_and_keeps_an_estimator_that_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = write_both(tmp_path), tmp_path / "out"
    assert train(file, out, "optim.max_epoch", "1") == 0
    capsys.readouterr()
    assert train(file, out, "optim.max_epoch", "1", flags=("--overwrite",)) == 0
    printed = capsys.readouterr().out
    assert "epoch 1/1 wide/0" in printed
    assert "narrow/0 loss" not in printed
    write_both(tmp_path, {"gt.dim_hidden": 6, "gnn.dim_inner": 6})
    assert train(file, out, "optim.max_epoch", "1", flags=("--overwrite",)) == 0
    assert "epoch 1/3 narrow/0" in capsys.readouterr().out
    assert (sample(out) / "narrow" / "0.old-1").is_dir()


def test_other_settings_of_the_estimator_are_another_experiment(trained: Path, tmp_path: Path) -> None:
    from graphgps_kmip.gym.planned_runs import planned_hash

    argv = ["--cfg", str(write_both(tmp_path / "a"))]
    assert planned_hash(argv, Path()) == record(trained / "out", "wide")["config_hash"]
    other = ["--cfg", str(write_both(tmp_path / "b", {"optim.base_lr": 0.02}))]
    assert planned_hash(other, Path()) != planned_hash(argv, Path())
    assert planned_hash([*argv, "train.precision", "64-true"], Path()) != planned_hash(argv, Path())


def test_a_narrow_kmip_network_is_an_estimator_too(tmp_path: Path) -> None:
    file, out = write_both(tmp_path), tmp_path / "out"
    write(tmp_path / "narrow.yaml", KMIP)
    assert train(file, out) == 0
    scores = read_scores(sample(out) / "narrow" / "0" / "scores.pt")
    assert scores.facts["kinds"] == "selected"
    assert len(scores.layers) == 2
    degree = scores.layers[0].ptr.diff()
    assert 4 <= int(degree.min()) <= int(degree.max()) <= 8  # keys of two heads
    assert record(out, "wide")["finished"]


@pytest.mark.parametrize(
    ("changes", "argv", "precisions"),
    [
        ({}, ["train.precision", "64-true"], ["64-true", "64-true"]),
        ({"train.precision": "64-true"}, [], ["64-true", "32-true"]),
    ],
)
def test_a_precision_of_the_command_is_that_of_both_stages_and_one_in_the_file_of_the_estimator_its_own(
    changes: dict[str, Any], argv: list[str], precisions: list[str], tmp_path: Path
) -> None:
    file, out = write_both(tmp_path, changes), tmp_path / "out"
    assert train(file, out, *argv, "optim.max_epoch", "1") == 0
    assert [record(out, name)["precision"] for name in ("narrow", "wide")] == precisions


def test_a_dry_run_needs_no_scores_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(write_both(tmp_path), tmp_path / "out", flags=("--dry-run",)) == 0
    printed = capsys.readouterr().out
    last = printed.splitlines()[-1]
    assert last.endswith(f"narrow/0/scores.pt: missing, {tmp_path / 'narrow.yaml'} is trained first")
    assert not sample(tmp_path / "out").exists()


def test_evaluation_on_several_draws_changes_validation_and_no_training(trained: Path, tmp_path: Path) -> None:
    file = write_both(tmp_path)
    argv = ["spexphormer.scores", str(sample(trained / "out") / "narrow" / "0"), "spexphormer.eval_draws", "4"]
    assert train(file, tmp_path / "out", *argv) == 0
    assert lines(tmp_path / "out", "wide", "train") == lines(trained / "out", "wide", "train")
    assert lines(tmp_path / "out", "wide", "val") != lines(trained / "out", "wide", "val")


@pytest.mark.slow
def test_two_processes_train_both_stages_on_the_same_scores_as_one(tmp_path: Path) -> None:
    """The estimator sees the whole graph in either case; batches of the sparse network are those of both processes."""
    file, out = write_both(tmp_path), tmp_path / "out"
    for devices in "12":
        done = python("main.py", "--cfg", file, "out_dir", out / devices, "devices", devices)
        assert done.returncode == 0, done.stderr
    first, second = (read_scores(sample(out / devices) / "narrow" / "0" / "scores.pt") for devices in "12")
    for layer, other in zip(first.layers, second.layers, strict=True):
        torch.testing.assert_close(layer.score, other.score, rtol=1e-3, atol=1e-5)
    assert record(out / "2", "wide")["processes"] == 2
