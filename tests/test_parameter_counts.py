"""The k-MIP thesis' printed parameter counts, part by part, and the parameters that a training step reaches."""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.model_builder import create_model

from graphgps_kmip.data import make_loaders
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.data_loading import dataset_info, load_configured
from graphgps_kmip.gym.experiment import assemble
from graphgps_kmip.gym.parameter_count import count_layers
from graphgps_kmip.gym.planned_runs import configured, planned_runs
from graphgps_kmip.gym.train_modes import current_task

pytestmark = pytest.mark.usefixtures("few_digits", "small_samples")

ROOT = Path(__file__).parents[1]
PRINTED: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "tests" / "parameter_counts.yaml").read_text())
SAMPLE = ["dataset.sample", "True", "num_threads", "1", "train.batch_size", "4"]


@cache
def facts(dataset: str) -> tuple[int, int, int]:
    """Return columns of the node features, classes and columns of the edge features: the same for all its runs."""
    load_config(cfg, ROOT / "configs" / f"{dataset}-gine.yaml", SAMPLE)
    info = dataset_info(load_configured().dataset)
    return info.dim_in, info.dim_out, info.dim_edge


def counted(run: str) -> nn.Module:
    """Return the model of a run, built without memory for its parameters."""
    dim_in, dim_out, edge_dim = facts(run.rsplit("-", 1)[0])
    load_config(cfg, ROOT / "configs" / f"{run}.yaml", SAMPLE)
    cfg.share.dim_in, cfg.share.dim_out, cfg.dataset.edge_dim = dim_in, dim_out, edge_dim
    with torch.device("meta"):
        return create_model(to_device=False)


def by_method(mark: pytest.MarkDecorator) -> list[object]:
    """Return all runs, those with a mark of whose method another one is tried by default."""
    methods: set[str] = set()
    marked: list[object] = []
    for run in PRINTED:
        method = run.rsplit("-", 1)[1]
        marked.append(pytest.param(run, marks=[mark] if method in methods else []))
        methods.add(method)
    return marked


def test_all_but_two_of_the_69_printed_counts_are_met() -> None:
    assert len(PRINTED) == 69
    misprints = {run for run, row in PRINTED.items() if "counted" in row}
    assert misprints == {"SmallGraphs/pascalvoc-kmip", "LargeGraphs/shapenet-gcn"}


@pytest.mark.parametrize("run", by_method(pytest.mark.thorough))
def test_a_model_has_the_printed_number_of_parameters_part_by_part(run: str) -> None:
    row, model = PRINTED[run], counted(run)
    assert count_layers(model) == (row["once"], [row["per_layer"]] * row["layers"])
    assert sum(parameter.numel() for parameter in model.parameters()) == row.get("counted", row["printed"])


@pytest.mark.parametrize("run", by_method(pytest.mark.slow))
def test_a_training_step_reaches_every_parameter_that_the_public_code_uses(run: str) -> None:
    load_config(cfg, ROOT / "configs" / f"{run}.yaml", SAMPLE)
    with configured(planned_runs(1)[0]):
        parts = assemble()
        batch = next(iter(make_loaders(parts.dataset, parts.info.level, cfg.train.batch_size, seed=0)[0]))
        batch.split = "train"
        total, _ = current_task(parts.info.dim_out).loss(*parts.model(batch))
        total.backward()
    names = dict(parts.model.model.named_parameters())
    unused = {name for name in names for pattern in PRINTED[run].get("unused", []) if fnmatch(name, pattern)}
    reached = {name for name, parameter in names.items() if parameter.grad is not None and parameter.grad.any()}
    assert set(names) - reached == unused
