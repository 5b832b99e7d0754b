"""Task: loss, score, metrics, and the one that selects the epoch; all that the trainer knows of a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def identity(tensor: Tensor) -> Tensor:
    """Return the tensor itself: the sum over the processes of a run that has only one."""
    return tensor


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
