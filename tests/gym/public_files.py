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
EDGE_TYPES = {"edge_encoder": True, "edge_encoder_name": "TypeDictEdge", "edge_encoder_num_types": 4}
EDGE_TYPES |= {"edge_encoder_bn": False}
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
BIG_BIRD = ZINC | {"model": ZINC["model"] | {"type": "BigBird"}}
# As published BigBird's names an encoder that GraphGPS itself has not.
UNKNOWN_ENCODER = {"node_encoder_name": "ZINCNode+LapPE", "node_encoder_num_types": 0}


# Graphormer, and GPS layers with its bias.
Tree = dict[str, dict[str, Any]]
TABLES = {"enable": True, "num_spatial_types": 20}
MOLECULES: Tree = {
    "dataset": {"format": "PyG-ZINC", "name": "subset", "task": "graph", "task_type": "regression"}
    | {"transductive": False, "node_encoder": True, "node_encoder_name": "TypeDictNode+GraphormerBias"}
    | {"node_encoder_num_types": 28, "edge_encoder_name": "TypeDictEdge", "edge_encoder_num_types": 4}
    | {"node_encoder_bn": False, "edge_encoder_bn": False},
    "posenc_GraphormerBias": TABLES | {"node_degrees_only": False, "num_in_degrees": 64, "num_out_degrees": 64},
    "train": {"mode": "custom", "batch_size": 8},
}
GRAPHORMER_ZINC = MOLECULES | {
    "dataset": MOLECULES["dataset"] | {"edge_encoder": False},
    "model": {"type": "Graphormer", "loss_fun": "l1", "graph_pooling": "graph_token"},
    "graphormer": {"num_layers": 12, "num_heads": 8, "embed_dim": 80, "dropout": 0.0}
    | dict.fromkeys(("attention_dropout", "mlp_dropout", "input_dropout"), 0.1),
    "gnn": {"head": "graphormer_graph", "layers_pre_mp": 0, "layers_post_mp": 3, "dim_inner": 80, "act": "relu"},
    "optim": {"optimizer": "adamW", "base_lr": 0.001, "scheduler": "polynomial_with_warmup"},
}
BOTH = MOLECULES | {  # layers of GPS with Graphormer's bias and token
    "dataset": MOLECULES["dataset"] | {"edge_encoder": True},
    "model": {"type": "GPSModel", "loss_fun": "l1", "graph_pooling": "graph_token"},
    "graphormer": {"use_graph_token": True},
    "gt": {"layer_type": "GINE+BiasedTransformer", "layers": 10, "n_heads": 4, "dim_hidden": 64, "attn_dropout": 0.5},
    "gnn": {"head": "san_graph", "layers_pre_mp": 0, "layers_post_mp": 3, "dim_inner": 64, "act": "relu"},
    "optim": {"optimizer": "adamW", "base_lr": 0.001, "scheduler": "cosine_with_warmup"},
}
BESIDE = BOTH | {  # beside another encoding, without the token
    "dataset": BOTH["dataset"] | {"node_encoder_name": "TypeDictNode+GraphormerBias+RWSE"},
    "model": BOTH["model"] | {"graph_pooling": "add"},
    "graphormer": {"use_graph_token": False},
    "posenc_RWSE": {"enable": True, "kernel": {"times_func": "range(1,21)"}, "model": "Linear", "dim_pe": 28}
    | {"raw_norm_type": "BatchNorm"},
}
CORNELL: Tree = {
    "dataset": {"format": "PyG-WebKB", "name": "cornell", "task": "node", "task_type": "classification"}
    | {"transductive": True, "node_encoder": True, "node_encoder_name": "LinearNode+GraphormerBias"}
    | {"edge_encoder": False, "edge_encoder_name": "DummyEdge", "node_encoder_bn": False, "edge_encoder_bn": False},
    "posenc_GraphormerBias": TABLES | {"num_in_degrees": 9, "num_out_degrees": 94},
    "train": {"mode": "custom", "sampler": "full_batch"},
    "model": {"type": "Graphormer", "loss_fun": "cross_entropy"},
    "graphormer": {"use_graph_token": False, "num_layers": 2, "num_heads": 4, "embed_dim": 64}
    | {"dropout": 0.2, "attention_dropout": 0.0, "mlp_dropout": 0.2, "input_dropout": 0.0},
    "gnn": {"head": "node", "layers_pre_mp": 0, "layers_post_mp": 1, "dim_inner": 64, "act": "gelu", "dropout": 0.2},
    "optim": {"optimizer": "adamW", "base_lr": 0.0005, "scheduler": "cosine_with_warmup"},
}
DEGREES = CORNELL | {"posenc_GraphormerBias": CORNELL["posenc_GraphormerBias"] | {"node_degrees_only": True}}

GRAPHORMER_FILES = {
    "zinc-Graphormer": GRAPHORMER_ZINC,
    "webkb-cor-Graphormer": CORNELL,
    "webkb-cor-Graphormer with degrees only": DEGREES,
    "zinc-GPSwGraphormer+VN": BOTH,
    "zinc-GPSwGraphormer": BESIDE,
}


def assemble_run(folder: Path, content: dict[str, Any], *argv: str) -> Parts:
    file = folder / "public.yaml"
    file.write_text(yaml.safe_dump(content))
    load_config(cfg, file, ["dataset.sample", "True", "num_threads", "1", *argv])
    with configured(planned_runs(1)[0]):
        return assemble()


def silent_after_two_steps(folder: Path, content: dict[str, Any]) -> list[str]:
    """Return the names of the parameters that two steps of training leave as they were, having seen finite losses."""
    parts = assemble_run(folder, content)
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
