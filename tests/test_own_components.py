"""Every kind of component from a user's own file, as docs/extending.md shows it, and by GraphGym's own decorators."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch_geometric.graphgym.config import cfg

import main
from graphgps_kmip.gym import experiment
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.experiment import Parts
from graphgps_kmip.gym.train_modes import current_optimizer, current_scheduler, current_task
from graphgps_kmip.registry import entries

pytestmark = pytest.mark.usefixtures("few_digits", "own_registry", "graphgym_registries")

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
SECTION = PAGE[PAGE.index("## Everything else") : PAGE.index("## From Python")]
PARTS = "\n\n".join(re.findall(r"```python\n(.*?)```", SECTION, re.S))
(YAML,) = re.findall(r"```yaml\n(.*?)```", SECTION, re.S)
SHORT = "optim.max_epoch 1 gt.layers 1 train.batch_size 512 num_threads 1 dataset.sample True".split()
GRAPHGYM = """
import torch
from torch import nn
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym import register as graphgym

@graphgym.register_node_encoder("TheirNode")
class TheirNode(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(cfg.share.dim_in, dim)
    def forward(self, batch):
        batch.x = self.linear(batch.x)
        return batch

@graphgym.register_edge_encoder("TheirEdge")
class TheirEdge(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(cfg.dataset.edge_dim, dim)
    def forward(self, batch):
        batch.edge_attr = self.linear(batch.edge_attr)
        return batch

@graphgym.register_head("their_head")
class TheirHead(nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        self.linear = nn.Linear(dim_in, dim_out)
    def forward(self, batch):
        pooled = graphgym.pooling_dict["their_pooling"](batch.x, batch.batch, batch.num_graphs)
        return self.linear(pooled), batch.y

@graphgym.register_pooling("their_pooling")
def their_pooling(x, batch, size):
    return x.new_zeros(size, x.size(1)).index_add(0, batch, x)

@graphgym.register_loss("their_loss")
def their_loss(pred, true):
    if cfg.model.loss_fun == "their_loss":
        return nn.functional.cross_entropy(pred, true), pred.softmax(-1)

@graphgym.register_optimizer("their_optimizer")
def their_optimizer(params, base_lr):
    return torch.optim.Adamax(params, base_lr)

@graphgym.register_scheduler("their_scheduler")
def their_scheduler(optimizer, max_epoch):
    return torch.optim.lr_scheduler.StepLR(optimizer, max_epoch)

graphgym.register_act("their_act", nn.Mish)

@graphgym.register_layer("theirlayer")
class TheirLayer(nn.Module):
    def __init__(self, layer_config):
        super().__init__()
        self.linear = nn.Linear(layer_config.dim_in, layer_config.dim_out)
    def forward(self, batch):
        batch.x = self.linear(batch.x)
        return batch
"""
THEIRS = """base: configs/quickstart/digits-kmip.yaml
custom_modules: [their_parts.py]
dataset:
  node_encoder_name: TheirNode
gnn:
  head: their_head
  act: their_act
model:
  loss_fun: their_loss
  graph_pooling: their_pooling
optim:
  optimizer: their_optimizer
  scheduler: their_scheduler
"""


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(ROOT)
    yield
    for name in ("my_parts", "their_parts"):
        sys.modules.pop(name, None)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[Parts]:
    every_part: list[Parts] = []
    assemble = experiment.assemble
    monkeypatch.setattr(experiment, "assemble", lambda: every_part.append(assemble()) or every_part[-1])
    return every_part


def run(folder: Path, module: str, code: str, text: str, *argv: str) -> int:
    (folder / module).write_text(code)
    (folder / "own.yaml").write_text(text.replace("configs/", f"{ROOT}/configs/"))
    return main.run(["--cfg", str(folder / "own.yaml"), *SHORT, "out_dir", str(folder / "results"), *argv])


def test_every_kind_of_the_page_trains_from_one_file(
    tmp_path: Path, parts: list[Parts], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "my_parts.py", PARTS, YAML) == 0
    assert "top" in capsys.readouterr().out
    network = parts[0].model.model
    assert type(network.encoder.node).__name__ == "TanhEncoder"
    assert (type(network.head).__name__, network.layers[0].local[0].scale) == ("MaxHead", 0.5)
    assert isinstance(network.layers[0].ffn[1], torch.nn.Softplus)
    for kind in ("message_passing", "node_encoder", "edge_encoder", "head", "loss", "metric", "optimizer", "scheduler"):
        assert any(spec.module == "my_parts" for spec in entries(kind).values()), kind


def test_a_network_of_ones_own_trains(tmp_path: Path, parts: list[Parts]) -> None:
    assert run(tmp_path, "my_parts.py", PARTS, YAML, "model.type", "Tiny", "network.tiny.depth", "2") == 0
    assert len(parts[0].model.model.layers) == 2


def test_their_options_reach_loss_metric_optimizer_and_schedule(tmp_path: Path) -> None:
    (tmp_path / "my_parts.py").write_text(PARTS)
    (tmp_path / "own.yaml").write_text(YAML.replace("configs/", f"{ROOT}/configs/"))
    argv = "optimizer.nadam.momentum_decay 0.1 scheduler.inverse.power 2.0 metric.top.k 5 optim.base_lr 0.5".split()
    load_config(cfg, tmp_path / "own.yaml", argv)
    task = current_task(10)
    assert task.loss.keywords == {"smoothing": 0.2}
    assert task.metrics["top"].keywords["form"].keywords == {"k": 5}
    optimizer = current_optimizer(torch.nn.Linear(2, 2))
    scheduler = current_scheduler(optimizer)
    optimizer.step()
    scheduler.step()
    assert (optimizer.param_groups[0]["momentum_decay"], optimizer.param_groups[0]["lr"]) == (0.1, 0.5 / 4)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["loss.smoothed.smooting", "0.1"], "Did you mean loss.smoothed.smoothing"),
        (["gt.layer_type", "MeanCnv"], "Did you mean MeanConv"),
        (["metric_best", "topp"], "Did you mean top"),
        (["optim.optimizer", "nadm"], "Did you mean nadam"),
    ],
)
def test_their_names_and_options_have_near_misses(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "my_parts.py", PARTS, YAML, *argv) == 2
    assert message in capsys.readouterr().err


def test_what_graphgyms_own_decorators_register_trains(tmp_path: Path, parts: list[Parts]) -> None:
    assert run(tmp_path, "their_parts.py", GRAPHGYM, THEIRS) == 0
    network = parts[0].model.model
    assert (type(network.encoder.node).__name__, type(network.head).__name__) == ("TheirNode", "TheirHead")


def test_a_layer_of_graphgym_says_what_to_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "their_parts.py", GRAPHGYM, THEIRS, "gt.layer_type", "theirlayer+kMIP") == 2
    assert "register('message_passing', 'theirlayer', ...)" in capsys.readouterr().err
