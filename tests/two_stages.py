"""YAML files of a small estimator and a small sparse network on sample data, for the tests of the two stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import main
from graphgps_kmip.data import synthetic_sample

SHARED: dict[str, Any] = {
    "dialect": "",
    "metric_best": "auc",
    "num_threads": 1,
    "accelerator": "cpu",
    "dataset.format": "PyG-Heterophilous",
    "dataset.name": "Minesweeper",
    "dataset.sample": True,
    "dataset.task": "node",
    "dataset.node_encoder": True,
    "dataset.node_encoder_name": "LinearNode",
    "dataset.edge_encoder": False,
    "train.ckpt_best": True,
    "train.ckpt_period": 1,
    "train.eval_period": 1,
    "train.auto_resume": True,
    "model.type": "Spexphormer",
    "model.loss_fun": "cross_entropy",
    "gnn.head": "node",
    "gnn.layers_post_mp": 1,
    "optim.max_epoch": 3,
    "optim.base_lr": 0.01,
    "gt.layers": 2,
}
WIDTH = {"gt.n_heads": 2, "gt.dim_hidden": 8, "gnn.dim_inner": 8}
ESTIMATOR: dict[str, Any] = {
    **SHARED,
    "prep.exp": True,
    "prep.exp_algorithm": "Hamiltonian",
    "prep.exp_deg": 2,
    "gt.layer_type": "ScoreEstimator",
    "gt.n_heads": 1,
    "gt.dim_hidden": 4,
    "gnn.dim_inner": 4,
}
KMIP: dict[str, Any] = {
    **SHARED,
    **WIDTH,
    "model.type": "GPSModel",
    "gt.layer_type": "GCN+kMIP",
    "gt.kmip.k": 4,
    "dataset.edge_encoder": True,
    "dataset.edge_encoder_name": "DummyEdge",
}
SPARSE: dict[str, Any] = {
    **SHARED,
    **WIDTH,
    "gt.layer_type": "Spexphormer",
    "gt.dropout": 0.1,
    "spexphormer.estimator": "narrow.yaml",
    "spexphormer.degree": [3, 2],
    "train.batch_size": 64,
}


def write(file: Path, settings: dict[str, Any]) -> Path:
    """Write dotted keys as a YAML file: nested mappings in JSON, which is YAML."""
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *groups, leaf = key.split(".")
        node = nested
        for group in groups:
            node = node.setdefault(group, {})
        node[leaf] = value
    file.write_text(json.dumps(nested))
    return file


def write_both(folder: Path, narrow: dict[str, Any] | None = None, wide: dict[str, Any] | None = None) -> Path:
    """Write ``narrow.yaml``, an estimator, and ``wide.yaml``, which is returned; with other values of some keys."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "narrow.yaml", ESTIMATOR | (narrow or {}))
    return write(folder / "wide.yaml", SPARSE | (wide or {}))


def train(file: Path, out: Path, *argv: str, flags: tuple[str, ...] = ()) -> int:
    return main.run(["--cfg", str(file), *flags, "out_dir", str(out), *argv])


def train_once(file: Path, out: Path) -> None:
    """Train on samples as small as those of the fixture ``small_samples``, for all tests of a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic_sample, "MAX_NODES_OF_ONE", 300)
        assert train(file, out) == 0


def record(out: Path, name: str, run: str = "0") -> dict[str, Any]:
    return json.loads((sample(out) / name / run / "record.json").read_text())


def sample(out: Path) -> Path:
    return out.with_name(f"{out.name}-sample")
