"""Public YAML files as mappings, and what is made of them on sample data."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
import yaml
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.optim import create_optimizer

from graphgps_kmip.data import make_loaders
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.experiment import Parts, assemble
from graphgps_kmip.gym.planned_runs import configured, planned_runs
from graphgps_kmip.gym.train_modes import current_task

# The keys of GraphGPS' tests/configs/graph/{zinc-Performer,nci1-Performer,zinc-BigBird}.yaml that say what is built.
GT = {"full_graph": True, "gamma": "1e-5", "dropout": 0.0, "layer_norm": False, "batch_norm": True, "residual": True}
GNN = {"layers_pre_mp": 0, "batchnorm": True, "act": "relu", "dropout": 0.0, "agg": "mean", "normalize_adj": False}
EIGEN = {"laplacian_norm": "sym", "eigvec_norm": "L2", "max_freqs": 10}
LAP = {"enable": True, "eigen": EIGEN, "model": "DeepSet", "n_heads": 4, "raw_norm_type": "none"}
OPTIM = {"optimizer": "adam", "weight_decay": 0.0, "base_lr": 0.001, "max_epoch": 300, "scheduler": "reduce_on_plateau"}
COMMON = {
    "out_dir": "tests/results",
    "train": {"mode": "custom", "batch_size": 32, "eval_period": 1, "ckpt_period": 100},
    "optim": OPTIM | {"reduce_factor": 0.5, "schedule_patience": 10, "min_lr": "1e-6"},
}
NODES = {"task": "graph", "transductive": False, "node_encoder": True, "node_encoder_bn": False}
ZINC = COMMON | {
    "metric_best": "mae",
    "metric_agg": "argmin",
    "dataset": NODES
    | {"format": "PyG-ZINC", "name": "subset", "task_type": "regression"}
    | {"node_encoder_name": "TypeDictNode+LapPE", "node_encoder_num_types": 28},
    "train": COMMON["train"] | {"sampler": "full_batch"},
    "posenc_LapPE": LAP | {"dim_pe": 8, "layers": 2},
    "model": {"type": "Performer", "loss_fun": "l1", "edge_decoding": "dot", "graph_pooling": "add"},
    "gt": GT | {"layers": 10, "n_heads": 8, "dim_hidden": 56},
    "gnn": GNN | {"head": "san_graph", "layers_post_mp": 3, "dim_inner": 56},
}
NCI1 = COMMON | {
    "run_multiple_splits": list(range(10)),
    "metric_best": "accuracy",
    "round": 5,
    "dataset": NODES
    | {"format": "PyG-TUDataset", "name": "NCI1", "task_type": "classification"}
    | {"split_mode": "cv-stratifiedkfold-10", "split_dir": "tests/splits", "node_encoder_name": "LapPE"},
    "posenc_LapPE": LAP | {"dim_pe": 16, "layers": 3},
    "model": {"type": "Performer", "loss_fun": "cross_entropy", "edge_decoding": "dot", "graph_pooling": "add"},
    "gt": GT | {"layers": 2, "n_heads": 4, "dim_hidden": 64, "gamma": "1e-2"},
    "gnn": GNN | {"layers_post_mp": 2, "dim_inner": 64},
}
# As published it names an encoder that GraphGPS itself has not.
BIG_BIRD = ZINC | {"model": ZINC["model"] | {"type": "BigBird"}}
UNKNOWN_ENCODER = {"node_encoder_name": "ZINCNode+LapPE", "node_encoder_num_types": 0}


def assembled(folder: Path, content: dict[str, Any], *words: str) -> Parts:
    """Return data and model of a file with this content."""
    file = folder / "public.yaml"
    file.write_text(yaml.safe_dump(content))
    load_config(cfg, file, ["dataset.sample", "True", "num_threads", "1", *words])
    with configured(planned_runs(1)[0]):
        return assemble()


def silent_after_two_steps(folder: Path, content: dict[str, Any]) -> list[str]:
    """Return the names of the parameters that two steps of training leave as they were, having seen finite losses."""
    parts = assembled(folder, content)
    load_config(cfg, folder / "public.yaml", ["dataset.sample", "True"])
    task, optimizer = current_task(parts.info.dim_out), create_optimizer(parts.model.parameters(), cfg.optim)
    before = {name: parameter.detach().clone() for name, parameter in parts.model.named_parameters()}
    for batch in itertools.islice(make_loaders(parts.dataset, parts.info.level, 8, seed=0)[0], 2):
        batch.split = "train"
        total, weight = task.loss(*parts.model(batch))
        optimizer.zero_grad()
        (total / weight).backward()
        optimizer.step()
        assert torch.isfinite(total)
    return [name for name, parameter in parts.model.named_parameters() if torch.equal(before[name], parameter)]
