"""Another package with the same names, such as ``graphgps``, and ours in one process, through GraphGym's own calls."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.processes import forked

# What such a package does on import: it registers the names of its YAML files through GraphGym's decorators, replaces
# groups of the config, and its loader raises on formats that it does not have.
OTHER = """
import torch
import torch_geometric.graphgym.register as r
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.loss import compute_loss
from torch_geometric.graphgym.models.encoder import AtomEncoder
from yacs.config import CfgNode as CN

def refuse(*arguments, **named):
    raise AssertionError("a part of the other package in a run of ours")

@r.register_network("TheirNet")
class TheirNet(torch.nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        assert r.node_encoder_dict["Atom"] is AtomEncoder, "GraphGym's"
        self.encoder = r.node_encoder_dict["LinearNode"](cfg.gnn.dim_inner)
        self.head = r.head_dict["san_graph"](cfg.gnn.dim_inner, dim_out)
        self.act = r.act_dict["swish"]()
    def forward(self, batch):
        return self.head(self.act(self.encoder(batch)), batch)
@r.register_node_encoder("LinearNode")
class TheirEncoder(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        if cfg.model.type != "TheirNet":
            refuse()
        self.linear = torch.nn.Linear(cfg.share.dim_in, dim)
    def forward(self, batch):
        return self.linear(batch.x) * batch.theirs
class TheirHead(torch.nn.Linear):
    def forward(self, x, batch):
        return super().forward(x).new_zeros(batch.num_graphs, self.out_features).index_add(
            0, batch.batch, super().forward(x)), batch.y
r.register_head("san_graph", TheirHead)
r.register_act("swish", torch.nn.SiLU)
r.register_network("GPSModel", refuse)
r.register_node_encoder("LinearNode+RWSE", refuse)
@r.register_loss("their_loss")
def their_loss(pred, true):
    return torch.nn.functional.cross_entropy(pred, true) * 2, pred
r.register_scheduler("cosine_with_warmup", lambda optimizer, max_epoch: refuse())
@r.register_optimizer("adamW")
def their_adamw(params, base_lr, weight_decay):
    return refuse() if cfg.model.type != "TheirNet" else torch.optim.AdamW(params, lr=base_lr)
@r.register_train("custom")
def their_loop(loggers, loaders, model, optimizer, scheduler):
    if cfg.model.type != "TheirNet":
        refuse()
    for batch in loaders[0]:
        loss, _ = compute_loss(*model(batch))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        print("loss", loss.item())
@r.register_loader("custom_master_loader")
def their_loader(format, name, dataset_dir):
    if format != "theirs":
        raise ValueError(f"Unknown data format: {format}")
    data = InMemoryDataset()
    torch.manual_seed(0)
    pairs, weight = torch.tensor([[0, 1], [1, 0]]), torch.full((4, 1), 2.0)
    graphs = [Data(torch.randn(4, 3), pairs, y=torch.tensor([i % 3]), theirs=weight) for i in range(24)]
    data.data, data.slices = data.collate(graphs)
    for split in ("train", "val", "test"):
        data._data[f"{split}_graph_index"] = torch.arange(8)
    return data
@r.register_config("cfg_gt")
def their_config(cfg):
    cfg.gt = CN()
    cfg.gt.layer_type = "SANLayer"
    cfg.gt.layers = 7
    cfg.gt.theirs = 1  # and gt.sparse, which our files may have, is not declared
    cfg.train.mode = "custom"
    cfg.optim.reduce_factor = 0.5
"""
OURS = "import graphgps_kmip.gym\n"
# As GraphGPS's main; the first line of its input is the file, the rest the command line.
MAIN = """
import json
from types import SimpleNamespace
from torch_geometric import seed_everything
from torch_geometric.graphgym.config import cfg, load_cfg, set_cfg, set_run_dir
from torch_geometric.graphgym.loader import create_loader
from torch_geometric.graphgym.model_builder import create_model
from torch_geometric.graphgym.optim import create_optimizer, create_scheduler
from torch_geometric.graphgym.register import train_dict
from torch_geometric.graphgym.utils.agg_runs import agg_runs
import logging, sys
logging.basicConfig(stream=sys.stdout, level="INFO", force=True)
cfg.clear()
set_cfg(cfg)
cfg.set_new_allowed(True)  # as GRIT's main does
load_cfg(cfg, SimpleNamespace(cfg_file=FILE, opts=OPTS))
print("config", json.dumps(cfg))
set_run_dir(cfg.out_dir)
seed_everything(cfg.seed)
loaders = create_loader() * 3  # as Exphormer's main does for ogbn-arxiv
model = create_model()
optimizer = create_optimizer(model.parameters(), cfg.optim)
scheduler = create_scheduler(optimizer, cfg.optim)
train_dict[cfg.train.mode]([], loaders, model, optimizer, scheduler)
if cfg.model.type == "GPSModel":
    agg_runs(cfg.out_dir, cfg.metric_best)
"""
THEIR_FILE = """
dataset: {format: theirs, name: x, task: graph, task_type: classification}
model: {type: TheirNet, loss_fun: their_loss}
gt: {sparse: {k: 3}}
gnn: {dim_inner: 8}
optim: {optimizer: adamW}
train: {batch_size: 2}
num_threads: 1
accelerator: cpu
"""
# Its node encoder is registered by the other package, too, under this composed name; gt.sparse.k is a public key.
OUR_FILE = """
dataset: {format: sklearn, name: digits, task: graph, task_type: classification, node_encoder: True,
  node_encoder_name: LinearNode+RWSE, node_encoder_bn: False, edge_encoder: True, edge_encoder_name: DummyEdge,
  edge_encoder_bn: False, sample: True, sample_graphs: 40}
posenc_RWSE: {enable: True, model: Linear, dim_pe: 4, raw_norm_type: BatchNorm, kernel: {times_func: "range(1,5)"}}
model: {type: GPSModel, loss_fun: cross_entropy, graph_pooling: mean}
gt: {layer_type: GatedGCN+kMIP, layers: 1, n_heads: 2, dim_hidden: 16, sparse: {k: 3}}
gnn: {head: graph, layers_post_mp: 2, dim_inner: 16}
optim: {optimizer: adamW, scheduler: cosine_with_warmup, max_epoch: 2, num_warmup_epochs: 1, base_lr: 1e-2}
train: {batch_size: 8}
tensorboard_agg: False
num_threads: 1
accelerator: cpu
"""
IMPORTS = {"theirs": OTHER, "ours": OURS, "theirs, ours": OTHER + OURS, "ours, theirs": OURS + OTHER}
BOTH = ("theirs, ours", "ours, theirs")


class Ended(dict[tuple[str, str], subprocess.CompletedProcess[str]]):
    """Runs of a file by the packages that were imported, in their order."""

    def __init__(self, folder: Path) -> None:
        (folder / "theirs.yaml").write_text(THEIR_FILE)
        (folder / "switched.yaml").write_text(THEIR_FILE.replace("TheirNet", "GPSModel"))
        (folder / "ours.yaml").write_text(OUR_FILE)
        cases = {(imports, "their file"): ("theirs.yaml", []) for imports in ("theirs", *BOTH)}
        cases |= {(imports, "our file"): ("ours.yaml", []) for imports in ("ours", *BOTH)}
        cases |= {(imports, "switched"): ("switched.yaml", ["model.type", "TheirNet"]) for imports in BOTH}
        self.folder, scripts = folder, []
        options = ["pretrained.dir", "earlier", "out_dir", str(folder)]
        pretrained = f"{OTHER}{OURS}\nFILE, OPTS = {str(folder / 'ours.yaml')!r}, {options!r}\n{MAIN}"
        twice = OTHER + OURS + "r.register_loss('their_loss', refuse)\n"
        for number, ((imports, _), (file, argv)) in enumerate(cases.items()):
            options = [*argv, "out_dir", str(folder / str(number))]
            scripts.append(f"{IMPORTS[imports]}\nFILE, OPTS = {str(folder / file)!r}, {options!r}\n{MAIN}")
        names = [*cases, ("both", "pretrained"), ("both", "twice")]
        super().__init__(zip(names, forked("import torch_geometric", [*scripts, pretrained, twice]), strict=True))

    def lines(self, imports: str, file: str, start: str) -> list[str]:
        result = self[imports, file]
        assert result.returncode == 0, result.stderr
        return [line.removeprefix(start).strip() for line in result.stdout.splitlines() if line.startswith(start)]

    def losses(self, imports: str) -> list[float]:
        self.lines(imports, "our file", "")
        stats = self.folder / str(list(self).index((imports, "our file"))) / "0/train/stats.json"
        return [json.loads(line)["loss"] for line in stats.read_text().splitlines()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return Ended(tmp_path_factory.mktemp("packages"))


def _config(runs: Ended, imports: str, file: str) -> dict[str, Any]:
    (line,) = runs.lines(imports, file, "config")
    return dict(json.loads(line), out_dir="", run_dir="")


@pytest.mark.parametrize("imports", BOTH)
def test_a_run_of_another_packages_network_is_as_without_this_package(imports: str, runs: Ended) -> None:
    without = runs.lines("theirs", "their file", "loss")
    assert len(without) == 4
    assert runs.lines(imports, "their file", "loss") == without
    (line,) = runs.lines(imports, "their file", "INFO:root:model.type")
    assert "TheirNet" in line
    assert "left to" in line


def _values(config: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _values(config[key], value) if isinstance(value, dict) else config[key] for key, value in shared.items()
    }


@pytest.mark.parametrize("imports", BOTH)
def test_the_defaults_of_another_packages_run_are_its_own(imports: str, runs: Ended) -> None:
    without = _config(runs, "theirs", "their file")
    assert _values(_config(runs, imports, "their file"), without) == without


@pytest.mark.parametrize("imports", BOTH)
def test_a_run_of_our_network_is_as_without_the_other_package(imports: str, runs: Ended) -> None:
    assert len(runs.losses("ours")) == 2
    assert runs.losses(imports) == runs.losses("ours")
    alone = _config(runs, "ours", "our file")
    assert _values(_config(runs, imports, "our file"), alone) == alone
    (line,) = runs.lines(imports, "our file", "INFO:root:model.type")
    assert "GPSModel" in line
    assert "those of graphgps_kmip" in line


def test_graphgyms_own_calls_train_and_aggregate_our_network_and_load_its_file_as_main_does(runs: Ended) -> None:
    first, last = runs.losses("ours")
    assert last < first, "nothing was learnt"
    folder = runs.folder / str(list(runs).index(("ours", "our file")))
    best = json.loads((folder / "agg/val/best.json").read_text().splitlines()[-1])
    assert 0 <= best["accuracy"] <= 1
    assert "accuracy_std" in best
    config = _config(runs, "ours", "our file")
    assert config["gt"]["kmip"]["k"] == 3
    assert config["optim"]["base_lr"] == 0.01  # 1e-2 is a text in YAML


@pytest.mark.parametrize("imports", BOTH)
def test_the_command_line_decides_whose_network_it_is(imports: str, runs: Ended) -> None:
    without = _config(runs, "theirs", "their file")
    assert _values(_config(runs, imports, "switched"), without) == without
    assert runs.lines(imports, "switched", "loss") == runs.lines("theirs", "their file", "loss")


def test_an_earlier_run_is_refused_whose_parameters_the_other_main_would_not_load(runs: Ended) -> None:
    last = runs["both", "pretrained"].stderr.splitlines()[-1]
    assert last.startswith("graphgps_kmip.errors.ConfigError: pretrained.dir earlier: ")


def test_a_name_that_only_others_have_can_still_be_registered_only_once(runs: Ended) -> None:
    assert "Module with 'their_loss' already defined" in runs["both", "twice"].stderr
