"""Our entries in GraphGym's registries, beside the public ``graphgps`` package, which uses the same names."""

from __future__ import annotations

import subprocess

import pytest

from tests.processes import forked

# What the public package does on import: registers the same names through GraphGym's decorators, a loader that raises
# on formats it does not know, and a config function that replaces the group `gt`.
OTHER = """
import torch_geometric.graphgym.register as r
from yacs.config import CfgNode as CN

@r.register_network("GPSModel")
def their_model(dim_in, dim_out): ...
@r.register_train("custom")
def their_train(loggers, loaders, model, optimizer, scheduler): ...
@r.register_node_encoder("LinearNode")
def their_encoder(dim): ...
@r.register_layer("GINE")
def their_layer(layer_config): ...
@r.register_optimizer("adamW")
def their_adamw(params, base_lr, weight_decay): ...
@r.register_loader("custom_master_loader")
def their_loader(format, name, dataset_dir):
    raise ValueError(f"Unknown data format: {format}")
@r.register_config("cfg_gt")
def their_config(cfg):
    cfg.gt = CN()
    cfg.gt.layers = 3
    cfg.gt.theirs = 1
"""
CHECK = """
import torch_geometric.graphgym.register as r
from torch_geometric.graphgym.config import cfg, set_cfg
from graphgps_kmip.gym import register_all
names = [sorted(map(str, registry)) for registry in (r.network_dict, r.head_dict, r.loader_dict, r.loss_dict)]
register_all()
assert names == [sorted(map(str, d)) for d in (r.network_dict, r.head_dict, r.loader_dict, r.loss_dict)]
set_cfg(cfg)
assert cfg.gt.kmip.k == 10, "our groups are gone"
assert cfg.gt.theirs == 1, "their keys are gone"
assert r.network_dict["GPSModel"].__module__.startswith("graphgps_kmip")
assert r.train_dict["custom"].__module__.startswith("graphgps_kmip")
assert len(next(iter(r.loader_dict.values()))("sklearn", "digits", "").graphs) == 1797, "their loader was asked first"
assert next(iter(r.loader_dict.values()))("theirs", "x", "") is None
assert r.node_encoder_dict["LinearNode"].__name__ == "their_encoder"
assert r.layer_dict["GINE"].__name__ == "their_layer"
assert r.layer_dict["kMIP"].__module__.startswith("graphgps_kmip")
assert r.optimizer_dict["adamW"].__name__ == "their_adamw"
try:
    r.register_head("graph", object)
except KeyError:
    print("fine")
"""
OURS = "import graphgps_kmip.gym\n"


LOG = "import logging, sys\nlogging.basicConfig(stream=sys.stdout, level='WARNING')\n"
ORDERS = {"theirs first": OTHER + OURS, "ours first": OURS + OTHER}


@pytest.fixture(scope="module")
def results() -> dict[str, subprocess.CompletedProcess[str]]:
    ended = forked("import torch_geometric", [LOG + order + CHECK for order in ORDERS.values()])
    return dict(zip(ORDERS, ended, strict=True))


@pytest.mark.parametrize("order", ORDERS)
def test_both_packages_can_be_imported_in_either_order(
    order: str, results: dict[str, subprocess.CompletedProcess[str]]
) -> None:
    result = results[order]
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "fine"
    for name in ("'GPSModel'", "'custom'"):
        assert result.stdout.count(name) == 1, "each take-over is logged"
