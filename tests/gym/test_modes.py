"""Train modes: evaluation alone, predictions for the leaderboard, attention weights, and GraphGym's own name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.graphgym.config import cfg

import main
from graphgps_kmip.attention import collect_attention
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.attention_saving import save_weights
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.experiment import assemble
from graphgps_kmip.gym.planned_runs import configured, planned_runs
from graphgps_kmip.gym.pretrained import adopt_settings
from graphgps_kmip.gym.train_modes import check_mode
from graphgps_kmip.registry import components
from graphgps_kmip.train import evaluation
from tests.gym.earlier import after, kill, lines, train_earlier
from tests.test_main import DIGITS, SHORT

pytestmark = pytest.mark.usefixtures("few_digits")

SPLITS = ("train", "val", "test")
TIMES = ("time_epoch", "time_iter", "lr", "eta", "eta_hours")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_earlier(tmp_path_factory.mktemp("earlier"), "gt.layers", "2")


def test_inference_only_gives_the_scores_of_the_trained_model_and_trains_nothing(earlier: Path, tmp_path: Path) -> None:
    arguments = ["--cfg", DIGITS, "out_dir", str(tmp_path), *after(earlier, "inference-only", "seed", "0")]
    assert main.run(arguments) == 0
    run_dir = tmp_path / "digits-kmip" / "0"
    for split in SPLITS[1:]:  # those of training were counted while the model changed
        (line,) = lines(run_dir, split)
        (trained,) = lines(earlier / "0", split)
        for name in set(line) - set(TIMES):
            assert line[name] == pytest.approx(trained[name], rel=1e-5), (split, name)
    load_config(cfg, DIGITS, arguments[4:])
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
    assert main.run(arguments) == 0
    assert len(lines(run_dir, "test")) == 1  # finished: it is not repeated


def test_an_evaluation_killed_before_its_record_has_one_line_of_each_split_when_it_goes_on(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = after(earlier, "inference-only", "train.auto_resume", "True")
    arguments = ["--cfg", DIGITS, "out_dir", str(tmp_path), *argv]
    with monkeypatch.context() as patched:
        patched.setattr(evaluation, "write_record", kill)
        assert main.run(arguments) == 130
    assert main.run(arguments) == 0
    assert [len(lines(tmp_path / "digits-kmip" / "0", split)) for split in SPLITS] == [1, 1, 1]


ATTENTIONS = {
    "GatedGCN+kMIP": {},
    "GatedGCN+Transformer": {},
    "None+BiasedTransformer": {
        "posenc_GraphormerBias.enable": "True",
        "graphormer.use_graph_token": "False",  # it would be one node more
        "posenc_GraphormerBias.num_spatial_types": "5",
        "posenc_GraphormerBias.num_in_degrees": "20",
        "posenc_GraphormerBias.num_out_degrees": "20",
        "dataset.node_encoder_name": "LinearNode+GraphormerBias",
    },
}


@pytest.mark.parametrize("layer_type", ATTENTIONS)
def test_the_attention_weights_of_each_layer_head_and_graph_are_saved(layer_type: str, tmp_path: Path) -> None:
    arguments = [word for setting in ATTENTIONS[layer_type].items() for word in setting]
    load_config(cfg, DIGITS, [*SHORT, "gt.layers", "2", "gt.layer_type", layer_type, *arguments])
    with configured(planned_runs(1)[0]):
        parts = assemble()
        graphs = parts.dataset.part("test")
        assert save_weights(parts.model, graphs, tmp_path / "weights.npz", limit=3) == 3
        with np.load(tmp_path / "weights.npz") as file:
            arrays = {name: torch.from_numpy(file[name]) for name in file.files}
        assert len(arrays) == 3 * (2 + 2 * 2)  # x, edge_index, and index and weight of two layers
        for g in range(3):
            batch = Batch.from_data_list([graphs[g]])
            batch.split, batch.progress = "test", 1.0
            torch.testing.assert_close(arrays[f"graph_{g}/x"], graphs[g].x)
            for i, layer in enumerate(collect_attention(parts.model, batch)):
                torch.testing.assert_close(arrays[f"graph_{g}/index_{i}"], layer.index)
                weight = arrays[f"graph_{g}/weight_{i}"]
                torch.testing.assert_close(weight, layer.weight)
                assert weight.shape[:2] == (2, graphs[g].num_nodes)
                torch.testing.assert_close(weight.sum(-1), torch.ones(weight.shape[:2]))
    assert [path.name for path in tmp_path.iterdir()] == ["weights.npz"]


def test_log_attn_weights_saves_them_for_the_trained_model_and_its_scores(earlier: Path, tmp_path: Path) -> None:
    arguments = ["--cfg", DIGITS, "out_dir", str(tmp_path), *after(earlier, "log-attn-weights")]
    assert main.run(arguments) == 0
    run_dir = tmp_path / "digits-kmip" / "0"
    with np.load(run_dir / "attention_weights.npz") as file, np.load(run_dir / "attention.npz") as picture:
        assert sum(name.endswith("/x") for name in file.files) == 60  # all of them
        np.testing.assert_allclose(file["graph_0/weight_1"], picture["weight_1"])  # that of the first test graph
    assert len(lines(run_dir, "test")) == 1


def test_a_model_without_attention_weights_is_refused(tmp_path: Path) -> None:
    load_config(cfg, DIGITS, [*SHORT, "gt.layer_type", "GatedGCN+None"])
    with configured(planned_runs(1)[0]):
        parts = assemble()
        with pytest.raises(ConfigError, match="no layer of this model has attention weights"):
            save_weights(parts.model, parts.dataset.part("test"), tmp_path / "weights.npz")


MOLECULES = """
metric_best: mae
metric_agg: argmin
num_threads: 1
dataset: {format: OGB, name: PCQM4Mv2-subset, task: graph, task_type: regression, sample: True, sample_graphs: 100,
  node_encoder: True, node_encoder_name: Atom, node_encoder_bn: False,
  edge_encoder: True, edge_encoder_name: Bond, edge_encoder_bn: False}
train: {mode: custom, batch_size: 4, ckpt_period: 1}
model: {type: GPSModel, loss_fun: l1, graph_pooling: mean}
gt: {layer_type: GINE+Transformer, layers: 1, n_heads: 2, dim_hidden: 8}
gnn: {head: graph, layers_post_mp: 1, dim_inner: 8}
optim: {max_epoch: 1, base_lr: 0.01}
"""


def test_pcqm4mv2_inference_saves_predictions_as_the_leaderboard_wants_them(tmp_path: Path) -> None:
    file = tmp_path / "molecules.yaml"
    file.write_text(MOLECULES)
    out = ["out_dir", str(tmp_path / "out")]
    assert main.run(["--cfg", str(file), *out]) == 0
    folder = tmp_path / "out-sample" / "molecules"
    earlier_run = ["pretrained.dir", str(folder), "pretrained.reset_prediction_head", "False", "name_tag", "last"]
    arguments = [*earlier_run, "train.mode", "PCQM4Mv2-inference", "dataset.name", "PCQM4Mv2-inference"]
    assert main.run(["--cfg", str(file), *out, *arguments]) == 0
    run_dir = tmp_path / "out-sample" / "molecules-last" / "0"
    load_config(cfg, file, arguments)
    adopt_settings()
    with configured(planned_runs(1)[0]):
        parts = assemble()
        for split, name in (("val", "test-dev"), ("test", "test-challenge")):
            with np.load(run_dir / f"y_pred_pcqm4m-v2_{name}.npz") as saved:
                assert saved.files == ["y_pred"]
                assert saved["y_pred"].dtype == np.float32
                predictions = torch.from_numpy(saved["y_pred"])
            graphs = parts.dataset.part(split)
            with torch.no_grad():
                pred, _ = parts.model.eval()(Batch.from_data_list([graphs[i] for i in range(len(graphs))]))
            assert len(graphs) > 4  # more than a batch
            torch.testing.assert_close(predictions, pred.squeeze(-1))
    assert lines(run_dir, "train")[0]["mae"] > 0
    assert not (run_dir / "test").exists()


def test_standard_is_custom_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    modes = components("train_mode")
    assert modes["standard"] is modes["custom"]
    assert main.run(["--cfg", DIGITS, "out_dir", str(tmp_path), *SHORT, "train.mode", "standard"]) == 0
    assert sum("Lightning" in line for line in capsys.readouterr().out.splitlines()) == 1


REFUSED = {
    "no parameters": (["pretrained.dir", "''"], 1, r"inference does not train: name the run .* pretrained\.dir"),
    "another data set": (["dataset.name", "digits"], 1, r"predicts the data set dataset\.name PCQM4Mv2-inference"),
    "processes": ([], 2, "set devices 1"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_mode_that_cannot_do_its_work_is_refused_before_the_data_is_loaded(kind: str) -> None:
    argv, processes, message = REFUSED[kind]
    right = ["train.mode", "PCQM4Mv2-inference", "dataset.name", "PCQM4Mv2-inference", "pretrained.dir", "there"]
    load_config(cfg, DIGITS, [*right, *argv])
    with pytest.raises(ConfigError, match=message):
        check_mode(processes)


@pytest.mark.parametrize("reset", [True, False])
def test_inference_with_a_new_head_is_warned_of(reset: bool, caplog: pytest.LogCaptureFixture) -> None:
    argv = ["train.mode", "inference-only", "pretrained.dir", "there", "pretrained.reset_prediction_head", str(reset)]
    load_config(cfg, DIGITS, argv)
    check_mode()
    assert ("its outputs mean nothing" in caplog.text) == reset
