"""Train mode log-attn-weights: what every layer and head attends to, saved for many graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.graphgym.config import cfg

import main
from graphgps_kmip.attention import collect_attention
from graphgps_kmip.gym.attention_saving import save_weights
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.experiment import assemble
from graphgps_kmip.gym.planned_runs import configured, planned_runs
from tests.gym.earlier import after, lines, train_earlier
from tests.test_main import DIGITS, SHORT

pytestmark = pytest.mark.usefixtures("few_digits")

SPLITS = ("train", "val", "test")
TIMES = ("time_epoch", "time_iter", "lr", "eta", "eta_hours")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_earlier(tmp_path_factory.mktemp("earlier"), "gt.layers", "2")


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
    given = [word for setting in ATTENTIONS[layer_type].items() for word in setting]
    load_config(cfg, DIGITS, [*SHORT, "gt.layers", "2", "gt.layer_type", layer_type, *given])
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
    given = ["--cfg", DIGITS, "out_dir", str(tmp_path), *after(earlier, "log-attn-weights")]
    assert main.run(given) == 0
    run_dir = tmp_path / "digits-kmip" / "0"
    with np.load(run_dir / "attention_weights.npz") as file, np.load(run_dir / "attention.npz") as picture:
        assert sum(name.endswith("/x") for name in file.files) == 60  # all of them
        np.testing.assert_allclose(file["graph_0/weight_1"], picture["weight_1"])  # that of the first test graph
    assert len(lines(run_dir, "test")) == 1


def test_a_model_without_attention_weights_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = ["gt.layer_type", "GatedGCN+None", "train.ckpt_period", "1"]
    assert main.run(["--cfg", DIGITS, "out_dir", str(tmp_path), *SHORT, *plain]) == 0
    capsys.readouterr()
    given = after(tmp_path / "digits-kmip", "log-attn-weights", "out_dir", str(tmp_path / "more"))
    assert main.run(["--cfg", DIGITS, *given]) == 2
    assert "no layer of this model has attention weights" in capsys.readouterr().err
