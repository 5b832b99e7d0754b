"""The task of a run, from ``cfg``; also GraphGym's one loss entry of ours."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.registry import named
from graphgps_kmip.task import Task, make_task

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
    )


def loss_and_score(pred: Tensor, true: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return (loss, score) as GraphGym's ``compute_loss`` wants them; None leaves an unknown loss to other packages."""
    if cfg.model.loss_fun not in named("loss"):
        return None
    task = current_task()
    total, weight = task.loss(pred, true)
    return total / weight, task.score(pred)
