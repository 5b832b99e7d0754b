"""The stock way in: GraphGym's public calls, as GraphGPS's own main makes them, and nothing of ours but one import."""

from __future__ import annotations

import json
from pathlib import Path

from tests.processes import preloaded

ROOT = Path(__file__).parents[2]
MAIN = """
import sys
from types import SimpleNamespace
import torch
import graphgps_kmip.gym
from torch_geometric import seed_everything
from torch_geometric.graphgym.config import cfg, dump_cfg, load_cfg, set_cfg, set_out_dir, set_run_dir
from torch_geometric.graphgym.loader import create_loader
from torch_geometric.graphgym.logger import create_logger, set_printing
from torch_geometric.graphgym.model_builder import create_model
from torch_geometric.graphgym.optim import create_optimizer, create_scheduler
from torch_geometric.graphgym.register import train_dict
from torch_geometric.graphgym.utils.agg_runs import agg_runs
from torch_geometric.graphgym.utils.comp_budget import params_count
from torch_geometric.graphgym.utils.device import auto_select_device

set_cfg(cfg)
args = SimpleNamespace(cfg_file=sys.argv[1], opts=sys.argv[2:])
load_cfg(cfg, args)
torch.set_num_threads(cfg.num_threads)
set_out_dir(cfg.out_dir, args.cfg_file)
dump_cfg(cfg)
set_run_dir(cfg.out_dir)
set_printing()
seed_everything(cfg.seed)
auto_select_device()
loaders = create_loader()
loggers = create_logger()
model = create_model()
optimizer = create_optimizer(model.parameters(), cfg.optim)
scheduler = create_scheduler(optimizer, cfg.optim)
cfg.params = params_count(model)
train_dict[cfg.train.mode](loggers, loaders, model, optimizer, scheduler)
agg_runs(cfg.out_dir, cfg.metric_best)
"""


def test_graphgyms_own_calls_train_a_whole_run_and_aggregate_it(tmp_path: Path) -> None:
    words = [
        "out_dir",
        str(tmp_path),
        "optim.max_epoch",
        "2",
        "tensorboard_agg",
        "False",
        "gt.layers",
        "1",
        "num_threads",
        "1",
    ]
    result = preloaded("-c", MAIN, str(ROOT / "configs/quickstart/digits-kmip.yaml"), *words)
    assert result.returncode == 0, result.stderr
    out_dir = tmp_path / "digits-kmip"
    for split in ("train", "val", "test"):
        lines = [json.loads(line) for line in (out_dir / "0" / split / "stats.json").read_text().splitlines()]
        assert [line["epoch"] for line in lines] == [0, 1]
        assert lines[1]["loss"] < lines[0]["loss"], "nothing was learnt"
    best = json.loads((out_dir / "agg" / "val" / "best.json").read_text().splitlines()[-1])
    assert 0 < best["accuracy"] <= 1
    assert "accuracy_std" in best
