"""Evaluations of several splits of one graph share a pass of the model, and change nothing by it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data

import main
from graphgps_kmip.data.loaders import GraphLoader
from graphgps_kmip.model.gps import GPSModel
from graphgps_kmip.model.prediction_heads import NodeHead
from graphgps_kmip.train.loop import SharedGraph

# Each differs in layers or head; the default run has a plain stack, one that counts epochs and one with a readout.
NETWORKS = ["Fair/minesweeper", "Citation/cora-ppgt", "Citation/cora-polynormer"]
OTHERS = ["Citation/cora-kmip", "Citation/cora-sgformer", "Citation/cora-geco-blocks", "Citation/cora-gat"]
OTHERS += ["Node/computers-gcn", "Heterophilous/minesweeper-grit"]
KMIP = ["gt.layer_type", "GCN+kMIP", "recipe.jump", "cat"]
SPLITS = ("train", "val", "test")
GLOBAL = ["network.polynormer.local_epochs", "1"]  # then its head has layers of its own, which replace x
SETTINGS = ["dataset.sample", "True", "optim.max_epoch", "3", "train.early_stop_patience", "0", "num_threads", "1"]


def train(folder: Path, config: str, *arguments: str) -> dict[str, list[dict[str, Any]]]:
    """Train for three epochs, and return the statistics of each split without times."""
    extra = KMIP if "Fair" in config else GLOBAL if "polynormer" in config else []
    assert main.run(["--cfg", f"configs/{config}.yaml", "out_dir", str(folder), *SETTINGS, *extra, *arguments]) == 0
    (run_dir,) = (path.parent for path in folder.with_name(f"{folder.name}-sample").glob("*/0/record.json"))
    read = {split: map(json.loads, (run_dir / split / "stats.json").read_text().splitlines()) for split in SPLITS}
    return {
        split: [{key: value for key, value in line.items() if "time" not in key and "eta" not in key} for line in lines]
        for split, lines in read.items()
    }


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("config", NETWORKS + [pytest.param(name, marks=pytest.mark.thorough) for name in OTHERS])
def test_the_statistics_are_those_of_a_pass_for_each_split(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    encode = GPSModel._encode

    def counted(self: GPSModel, batch: Any) -> Any:
        calls[batch.split] += 1
        return encode(self, batch)

    monkeypatch.setattr(GPSModel, "_encode", counted)
    shared = train(tmp_path / "shared", config, "train.eval_period", "1", "train.eval_test", "every")
    assert calls == {"train": 3, "val": 3}
    monkeypatch.setattr(GPSModel, "reads_encoded", False)
    assert train(tmp_path / "apart", config, "train.eval_period", "1", "train.eval_test", "every") == shared
    assert calls == {"train": 6, "val": 6, "test": 3}


@pytest.mark.usefixtures("small_samples")
def test_an_evaluation_of_a_trained_model_passes_over_the_graph_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "run", "Fair/minesweeper", "train.enable_ckpt", "True")
    overrides = ["train.mode", "inference-only", "pretrained.dir", str(tmp_path / "run-sample/minesweeper")]
    with monkeypatch.context() as patch:
        patch.setattr(GPSModel, "reads_encoded", False)
        apart = train(tmp_path / "apart", "Fair/minesweeper", *overrides)
    calls: list[str] = []
    encode = GPSModel._encode
    monkeypatch.setattr(GPSModel, "_encode", lambda self, batch: calls.append(batch.split) or encode(self, batch))
    assert train(tmp_path / "once", "Fair/minesweeper", *overrides) == apart
    assert len(calls) == 1


class Copying(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, batch: Batch) -> Batch:
        batch = batch.clone()
        batch.x = self.linear(batch.x)
        return batch


def graph() -> Data:
    mask = torch.arange(6) % 2 == 0
    return Data(
        x=torch.randn(6, 3), edge_index=torch.zeros(2, 0).long(), y=torch.arange(6), val_mask=mask, test_mask=~mask
    )


def test_a_model_whose_encoder_returns_another_batch_still_predicts_from_its_features() -> None:
    model = GPSModel(Copying(), [], NodeHead(4, 2, masked=True)).eval()
    batch = Batch.from_data_list([graph()])
    batch.split = "val"
    shared = SharedGraph(model, [GraphLoader(graphs := [graph()], 1), GraphLoader(graphs, 1)])
    shared.take(batch)
    model(batch)
    encoded = shared.encoded("test")
    expected = model.head.mlp(batch.encoded[0][encoded.test_mask])
    assert torch.equal(model(encoded)[0], expected)


def test_another_forward_and_loaders_of_other_graphs_or_of_several_share_nothing() -> None:
    class Other(GPSModel):
        def forward(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
            return super().forward(batch)

    model, other = (kind(nn.Identity(), [], nn.Identity()) for kind in (GPSModel, Other))
    single = [graph()]
    several = [single[0], graph()]
    assert SharedGraph(model, [GraphLoader(single, 1), GraphLoader(single, 1)]).shares
    assert not SharedGraph(other, [GraphLoader(single, 1), GraphLoader(single, 1)]).shares
    assert not SharedGraph(model, [GraphLoader(single, 1), GraphLoader([graph()], 1)]).shares
    assert not SharedGraph(model, [GraphLoader(several, 1), GraphLoader(several, 1)]).shares
    assert not SharedGraph(model, [single, single]).shares
