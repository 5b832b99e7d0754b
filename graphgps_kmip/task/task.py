"""Task: loss, score, metrics, and the one that selects the epoch, from config values (task_type, loss_fun, ...)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import InputError
from graphgps_kmip.registry import Spec, named
from graphgps_kmip.task.losses import full_precision, squeeze, summed
from graphgps_kmip.task.metrics import Metric, most_probable


@dataclass(frozen=True)
class Task:
    """Loss, score and metrics of one task; the trainer knows no data set and no metric by name.

    Args:
        name: `classification_multi`, `classification_binary`, `classification_multilabel`, `regression`,
            `link_ranking` (logits and ranks of pairs), `link_prediction` (logits of pairs) or `subtoken_prediction`.
        loss: `loss(pred, true, all_reduce=identity) -> (total, weight)`; the loss is `total / weight`, summed over the
            processes, which `all_reduce` does for a tensor. `weight` has no gradient; where nothing counts `total` is 0
            and `weight` 1e-30.
        score: raw model output -> input of the metrics, in float32, or float64 where the output is.
        metrics: name -> `metric(score, true) -> float` over a whole split; nan where it is not defined.
        metric_best: the value that selects the epoch: a key of `metrics`, or `"loss"`.
        maximize: True if a larger `metric_best` is better.
    """

    name: str
    loss: Callable[..., tuple[Tensor, Tensor]]
    score: Callable[[Tensor], Tensor]
    metrics: Mapping[str, Callable[[Tensor, Tensor], float]]
    metric_best: str
    maximize: bool


# Several labels keep their raw outputs, as in GraphGPS: a float32 sigmoid would tie confident scores.
SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "classification_multi": lambda pred: F.log_softmax(full_precision(pred), dim=-1),
    "classification_binary": lambda pred: full_precision(pred).sigmoid(),
    "classification_multilabel": full_precision,
    "regression": full_precision,
    "link_ranking": full_precision,
    "link_prediction": full_precision,
    "subtoken_prediction": most_probable,
}


def _refuse_name(key: str, name: str, allowed: Iterable[str]) -> InputError:
    return InputError(f"{key} is {name!r}, which does not fit.{suggest(name, allowed)}")


Options = Callable[[Spec], Mapping[str, Any]]  # registry entry -> values of its keyword-only arguments


def _use_defaults(spec: Spec) -> Mapping[str, Any]:  # noqa: ARG001
    return {}


def list_functions(kind: str, task: str, options: Options = _use_defaults) -> dict[str, Callable[..., Any]]:
    """Return the losses or metrics (kind ``"loss"`` or ``"metric"``) of a `Task.name` by name and alias."""
    functions = {}
    for name, spec in named(kind).items():
        if isinstance(spec.component, Mapping):
            function = spec.component.get(task)
        else:
            function = spec.component if task in spec.traits.tasks else None
        if function is not None:
            functions[name] = partial(function, **options(spec)) if spec.options else function
    return functions


def _judge_split(score: Tensor, true: Tensor, form: Metric, thresh: float) -> float:
    return form(full_precision(score), squeeze(true), thresh)


def _choose_metric(metric_best: str, metric_agg: str, metrics: Iterable[str]) -> tuple[str, bool]:
    if metric_best in ("auto", "loss"):
        return "loss", False
    if metric_best not in metrics:
        raise _refuse_name("metric_best", metric_best, ["auto", "loss", *metrics])
    if metric_agg not in ("argmax", "argmin"):
        raise _refuse_name("metric_agg", metric_agg, ["argmax", "argmin"])
    maximize = named("metric")[metric_best].traits.maximize
    if maximize != (metric_agg == "argmax"):
        right = "argmax" if maximize else "argmin"
        raise InputError(f"metric_agg '{metric_agg}' would keep the worst {metric_best}; set metric_agg to '{right}'.")
    return metric_best, maximize


def make_task(
    task_type: str,
    dim_out: int,
    loss_fun: str,
    metric_best: str = "auto",
    metric_agg: str = "argmax",
    reduction: str = "mean",
    thresh: float = 0.5,
    options: Options = _use_defaults,
) -> Task:
    """Build the task that a config describes.

    Args:
        task_type: `classification` (two classes up to `dim_out` 2, else several), `classification_multilabel`,
            `regression`, or one of the full names of `Task.name`.
        dim_out: number of classes, labels or targets.
        loss_fun: a registered loss that fits the task.
        metric_best: a metric of the task selects the epoch; `auto` (or `loss`): the lowest validation loss.
        metric_agg: `argmax` or `argmin`, as fits the metric; not used with `auto`.
        reduction: `mean` or `sum` over the rows (GraphGym's `model.size_average`).
        thresh: a probability above it counts as yes (two classes, several labels).
        options (callable, optional): Registry entry of a loss or metric -> values of its options. (default: theirs)

    Raises:
        ValueError: an unknown name, a loss or metric that does not fit the task, a direction that keeps the worst.
    """
    name = task_type
    if task_type == "classification":
        name = "classification_binary" if dim_out <= 2 else "classification_multi"
    elif task_type not in SCORES:
        raise _refuse_name("dataset.task_type", task_type, ["classification", *SCORES])
    losses = list_functions("loss", name, options)
    if loss_fun not in losses:
        raise _refuse_name(f"model.loss_fun (task {name})", loss_fun, losses)
    if reduction not in ("mean", "sum"):
        raise _refuse_name("model.size_average", reduction, ["mean", "sum"])
    forms = list_functions("metric", name, options)
    best, maximize = _choose_metric(metric_best, metric_agg, forms)
    return Task(
        name=name,
        loss=losses[loss_fun] if reduction == "mean" else summed(losses[loss_fun]),
        score=SCORES[name],
        metrics={key: partial(_judge_split, form=form, thresh=thresh) for key, form in forms.items()},
        metric_best=best,
        maximize=maximize,
    )
