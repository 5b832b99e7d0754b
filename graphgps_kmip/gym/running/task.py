"""The task of a run, from ``cfg``; also GraphGym's one loss entry of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.registry import named
from graphgps_kmip.task import Task, make_task
from graphgps_kmip.task.task import identity

# Public YAML files call these a classification; what is scored, the head decides.
OF_HEADS = {
    "inductive_edge": "link_ranking",
    "link_pred": "link_prediction",
    "edge": "link_prediction",
    "infer_links": "classification_multi",
}


def current_task() -> Task:
    """Return the task that the config and the loaded data describe."""
    return make_task(
        OF_HEADS.get(cfg.gnn.head, cfg.dataset.task_type),
        cfg.share.dim_out,
        cfg.model.loss_fun,
        cfg.metric_best,
        cfg.metric_agg,
        cfg.model.size_average,
        cfg.model.thresh,
        lambda spec: cfg[spec.kind][spec.name.lower()],
    )


def from_graphgym(function: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a loss of GraphGym's ``register_loss``, ``(pred, true) -> (loss, score)``, as a loss of the registry."""

    def loss(pred: Tensor, true: Tensor, all_reduce: Callable[[Tensor], Tensor] = identity) -> tuple[Tensor, Tensor]:
        del all_reduce  # a mean over the batch knows no other process
        value, _ = function(pred, true)
        weight = torch.tensor(float(len(pred)), device=pred.device)
        return value * weight, weight

    return loss


def loss_and_score(pred: Tensor, true: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return (loss, score) as GraphGym's ``compute_loss`` wants them; None leaves an unknown loss to other packages."""
    if cfg.model.loss_fun not in named("loss"):
        return None
    task = current_task()
    total, weight = task.loss(pred, true)
    return total / weight, task.score(pred)
