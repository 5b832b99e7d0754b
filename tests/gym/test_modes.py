"""Train modes: evaluation alone, predictions for the leaderboard, attention weights, and GraphGym's own name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch_geometric.data import Batch
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.register import train_dict

import main
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.experiment import assemble
from graphgps_kmip.gym.planned_runs import configured, planned_runs
from graphgps_kmip.gym.pretrained import adopt_settings
from graphgps_kmip.gym.train_modes import check_mode
from graphgps_kmip.registry import entries
from graphgps_kmip.train import evaluation
from tests.gym.earlier import after, kill, lines, train_earlier
from tests.test_main import DIGITS, SHORT

pytestmark = pytest.mark.usefixtures("few_digits")

SPLITS = ("train", "val", "test")
TIMES = ("time_epoch", "time_iter", "lr", "eta", "eta_hours")


def test_every_mode_is_registered() -> None:
    assert entries("train_mode").keys() <= train_dict.keys()


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_earlier(tmp_path_factory.mktemp("earlier"), "gt.layers", "2")


def test_inference_only_gives_the_scores_of_the_trained_model_and_trains_nothing(earlier: Path, tmp_path: Path) -> None:
    given = ["--cfg", DIGITS, "out_dir", str(tmp_path), *after(earlier, "inference-only", "seed", "0")]
    assert main.run(given) == 0
    run_dir = tmp_path / "digits-kmip" / "0"
    for split in SPLITS:
        (line,) = lines(run_dir, split)
        (trained,) = lines(earlier / "0", split)
        if split == "train":  # those were counted while the model changed
            continue
        for name in set(line) - set(TIMES):
            assert line[name] == pytest.approx(trained[name], rel=1e-5), (split, name)
    load_config(cfg, DIGITS, given[4:])
    adopt_settings()
    with configured(planned_runs(1)[0]):
        parts = assemble()
        graphs = parts.dataset.part("train")
        batch = Batch.from_data_list([graphs[i] for i in range(len(graphs))])
        batch.split, batch.progress = "train", 1.0
        with torch.no_grad():
            pred, true = parts.model.eval()(batch)
    accuracy = (pred.argmax(-1) == true.flatten()).float().mean()
    assert lines(run_dir, "train")[0]["accuracy"] == pytest.approx(float(accuracy), rel=1e-5)
    record = json.loads((run_dir / "record.json").read_text())
    assert record["finished"]
    assert record["best"]["value"] == record["best"]["val"]["accuracy"]
    assert not (run_dir / "ckpt").exists()
    assert (tmp_path / "digits-kmip" / "agg" / "test" / "best.json").exists()
    assert main.run(given) == 0
    assert len(lines(run_dir, "test")) == 1  # finished: it is not repeated


def test_an_evaluation_killed_before_its_record_has_one_line_of_each_split_when_it_goes_on(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = after(earlier, "inference-only", "train.auto_resume", "True")
    given = ["--cfg", DIGITS, "out_dir", str(tmp_path), *words]
    with monkeypatch.context() as patched:
        patched.setattr(evaluation, "write_record", kill)
        assert main.run(given) == 130
    assert main.run(given) == 0
    assert [len(lines(tmp_path / "digits-kmip" / "0", split)) for split in SPLITS] == [1, 1, 1]


MOLECULES = {
    "metric_best": "mae",
    "metric_agg": "argmin",
    "num_threads": 1,
    "dataset": {
        "format": "OGB",
        "name": "PCQM4Mv2-subset",
        "task": "graph",
        "task_type": "regression",
        "sample": True,
        "node_encoder": True,
        "node_encoder_name": "Atom",
        "node_encoder_bn": False,
        "edge_encoder": True,
        "edge_encoder_name": "Bond",
        "edge_encoder_bn": False,
    },
    "train": {"mode": "custom", "batch_size": 32, "ckpt_period": 1},
    "model": {"type": "GPSModel", "loss_fun": "l1", "graph_pooling": "mean"},
    "gt": {"layer_type": "GINE+Transformer", "layers": 1, "n_heads": 2, "dim_hidden": 8},
    "gnn": {"head": "graph", "layers_post_mp": 1, "dim_inner": 8},
    "optim": {"max_epoch": 1, "base_lr": 0.01},
}


def test_pcqm4mv2_inference_saves_predictions_as_the_leaderboard_wants_them(tmp_path: Path) -> None:
    file = tmp_path / "molecules.yaml"
    file.write_text(yaml.safe_dump(MOLECULES))
    out = ["out_dir", str(tmp_path / "out")]
    assert main.run(["--cfg", str(file), *out]) == 0
    folder = tmp_path / "out-sample" / "molecules"
    kept = ["pretrained.dir", str(folder), "pretrained.reset_prediction_head", "False", "name_tag", "last"]
    given = [*kept, "train.mode", "PCQM4Mv2-inference", "dataset.name", "PCQM4Mv2-inference"]
    assert main.run(["--cfg", str(file), *out, *given]) == 0
    run_dir = tmp_path / "out-sample" / "molecules-last" / "0"
    load_config(cfg, file, given)
    adopt_settings()
    with configured(planned_runs(1)[0]):
        parts = assemble()
        for split, name in (("val", "test-dev"), ("test", "test-challenge")):
            with np.load(run_dir / f"y_pred_pcqm4m-v2_{name}.npz") as saved:
                assert saved.files == ["y_pred"]
                assert saved["y_pred"].dtype == np.float32
                found = torch.from_numpy(saved["y_pred"])
            graphs = parts.dataset.part(split)
            with torch.no_grad():
                pred, _ = parts.model.eval()(Batch.from_data_list([graphs[i] for i in range(len(graphs))]))
            assert len(graphs) > 32  # more than a batch
            torch.testing.assert_close(found, pred.squeeze(-1))
    assert lines(run_dir, "train")[0]["mae"] > 0
    assert not (run_dir / "test").exists()


def test_standard_trains_as_custom_does_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loss = {}
    for mode in ("custom", "standard"):
        assert main.run(["--cfg", DIGITS, "out_dir", str(tmp_path / mode), *SHORT, "train.mode", mode]) == 0
        loss[mode] = lines(tmp_path / mode / "digits-kmip" / "0", "train")[0]["loss"]
    assert loss["custom"] == loss["standard"]
    assert sum("Lightning" in line for line in capsys.readouterr().out.splitlines()) == 1


REFUSED = {
    "no parameters": (["pretrained.dir", "''"], 1, r"inference does not train: name the run .* pretrained\.dir"),
    "another data set": (["dataset.name", "digits"], 1, r"predicts the data set dataset\.name PCQM4Mv2-inference"),
    "processes": ([], 2, "set devices 1"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_mode_that_cannot_do_its_work_is_refused_before_the_data_is_loaded(kind: str) -> None:
    words, processes, message = REFUSED[kind]
    right = ["train.mode", "PCQM4Mv2-inference", "dataset.name", "PCQM4Mv2-inference", "pretrained.dir", "there"]
    load_config(cfg, DIGITS, [*right, *words])
    with pytest.raises(ConfigError, match=message):
        check_mode(processes)


@pytest.mark.parametrize("reset", [True, False])
def test_inference_with_a_new_head_is_warned_of(reset: bool, caplog: pytest.LogCaptureFixture) -> None:
    words = ["train.mode", "inference-only", "pretrained.dir", "there", "pretrained.reset_prediction_head", str(reset)]
    load_config(cfg, DIGITS, words)
    check_mode()
    assert ("its outputs mean nothing" in caplog.text) == reset
