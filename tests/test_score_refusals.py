"""What a sparse network refuses: one line, exit code 2, and nothing trained or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.two_stages import ESTIMATOR, SPARSE, sample, train, train_once, write, write_both

pytestmark = pytest.mark.usefixtures("small_samples")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a finished estimator of two layers; to be read only."""
    folder = tmp_path_factory.mktemp("estimator")
    train_once(write(folder / "narrow.yaml", ESTIMATOR | {"optim.max_epoch": 1}), folder / "out")
    return sample(folder / "out") / "narrow" / "0"


def refused(file: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    out = file.parent / "out"
    assert train(file, out, *argv) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1, printed.err
    assert "epoch 1/" not in printed.out
    assert not list(sample(out).rglob("record.json"))
    return printed.err


# Other settings of the sparse network -> what its line says, where the scores are given.
OF_SCORES: dict[str, tuple[dict[str, Any], str]] = {
    "other data": ({"prep.add_self_loops": True}, "the estimator saw other edges, features or labels"),
    "another split": ({"dataset.split_mode": "cv-kfold-4"}, "labels of this run's validation or test nodes may be in"),
    "more layers": ({"gt.layers": 3, "spexphormer.degree": [2]}, "scores of 2 layers for a network of 3"),
    "sampled batches": ({"train.sampler": "cluster"}, "train.sampler: gt.layer_type Spexphormer has batches of its"),
}


@pytest.mark.parametrize("case", OF_SCORES)
def test_scores_that_do_not_fit_are_refused(
    case: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, line = OF_SCORES[case]
    file = write_both(tmp_path, wide={**changes, "spexphormer.estimator": "", "spexphormer.scores": str(run_dir)})
    assert line in refused(file, capsys)


def test_scores_of_other_settings_than_the_estimators_yaml_are_refused(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_both(tmp_path, {"optim.max_epoch": 1}, {"spexphormer.scores": str(run_dir / "scores.pt")})
    assert train(file, tmp_path / "fits", "optim.max_epoch", "1") == 0
    file = write_both(tmp_path, {"optim.max_epoch": 2}, {"spexphormer.scores": str(run_dir / "scores.pt")})
    assert "scores of settings " in refused(file, capsys)


# Changes of the estimator's YAML, and of the sparse network's -> what the line says, before anything is trained.
OF_SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no YAML": ({}, {"spexphormer.estimator": "other.yaml"}, "spexphormer.estimator: there is no file other.yaml"),
    "no scores": ({}, {"spexphormer.scores": "none/scores.pt"}, "spexphormer.scores: there is no file none/scores.pt"),
    "neither": ({}, {"spexphormer.estimator": ""}, "and none is named: give its YAML, or its scores"),
    "no checkpoints": ({"train.enable_ckpt": False}, {}, "narrow.yaml: train.enable_ckpt is False"),
    "best not kept": ({"train.ckpt_best": False}, {}, "narrow.yaml: train.ckpt_best is False: the scores of an"),
    "fewer layers": ({"gt.layers": 1}, {}, "has gt.layers 1, the sparse network 2"),
    "another data set": ({"dataset.name": "Tolokers"}, {}, "has dataset.name Tolokers, the sparse network Minesweeper"),
    "another split": (
        {"dataset.split_mode": "random"},
        {},
        "narrow.yaml trains on another split than this run, so labels of its validation or test nodes would be in",
    ),
    "another split by the seed": (
        {"dataset.split_mode": "random"},
        {"dataset.split_mode": "random", "spexphormer.estimator_seed": 1},
        "set dataset.split_seed 0 in both",
    ),
    "other edges": ({"prep.add_self_loops": True}, {}, "narrow.yaml makes other edges, features or labels"),
    "degrees": ({}, {"spexphormer.degree": [5, 5, 5]}, "[5, 5, 5] has 3 entries for gt.layers 2"),
    "no degree": ({}, {"spexphormer.degree": []}, "spexphormer.degree: expected a list of 1 to 1000 entries"),
    "an unknown sampler": ({}, {"spexphormer.sampler": "graph_min"}, "spexphormer.sampler: expected one of"),
    "an unknown key": ({"gt.layrs": 2}, {}, "narrow.yaml: unknown key 'gt.layrs'. Did you mean gt.layers"),
}


@pytest.mark.parametrize("case", OF_SETTINGS)
def test_settings_that_cannot_work_are_refused_before_the_estimator_is_trained(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow, wide, line = OF_SETTINGS[case]
    assert line in refused(write_both(tmp_path, narrow, wide), capsys)


GRAPHS = {"dataset.format": "PyG-GNNBenchmarkDataset", "dataset.name": "PATTERN", "gnn.head": "inductive_node",
          "model.loss_fun": "weighted_cross_entropy", "metric_best": "accuracy-SBM"}  # fmt: skip


@pytest.mark.parametrize("stage", ["narrow", "wide"])
def test_several_graphs_have_no_scores(stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_both(tmp_path, GRAPHS, GRAPHS)
    line = refused(tmp_path / f"{stage}.yaml", capsys)
    assert "scores and samples of edges are of one graph whose nodes are classified" in line
    assert "PyG-GNNBenchmarkDataset PATTERN is 30 graphs, level inductive_node" in line


def test_what_is_no_estimator_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "narrow.yaml", ESTIMATOR | {"train.ckpt_best": False})
    assert "train.ckpt_best is False: the scores of an estimator" in refused(file, capsys)
    gcn = {"model.type": "GPSModel", "gt.layer_type": "GCN+None", "optim.max_epoch": 1}
    assert train(write_both(tmp_path, gcn), tmp_path / "out") == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "gt.layer_type GCN+None: no layer of this network has attention weights to write as scores" in line


@pytest.mark.parametrize(
    ("epochs", "lost", "message"),
    [
        (2, [], "holds a finished run of other settings than"),
        (1, ["scores.pt", "ckpt/best.ckpt"], "ckpt/best.ckpt is missing: train it again"),
    ],
)
def test_a_finished_estimator_of_other_settings_or_without_its_best_checkpoint_gives_no_scores(
    epochs: int, lost: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_both(tmp_path, {"optim.max_epoch": 1})
    assert train(tmp_path / "narrow.yaml", tmp_path / "out") == 0
    folder = sample(tmp_path / "out") / "narrow" / "0"
    for name in lost:
        (folder / name).unlink()
    before = {path: path.read_bytes() for path in folder.glob("*.pt")}
    write(tmp_path / "narrow.yaml", ESTIMATOR | {"optim.max_epoch": epochs})
    capsys.readouterr()
    assert train(file, tmp_path / "out") == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert message in line
    assert {path: path.read_bytes() for path in folder.glob("*.pt")} == before


def test_more_edges_than_a_node_has_are_allowed(run_dir: Path, tmp_path: Path) -> None:
    changes = {"spexphormer.degree": [1000], "spexphormer.scores": str(run_dir), "spexphormer.estimator": ""}
    assert train(write_both(tmp_path, wide=SPARSE | changes | {"optim.max_epoch": 1}), tmp_path / "out") == 0
