"""Metric accumulator: loss, scores and labels of one pass over a split, by batch and over all processes."""

from __future__ import annotations

import torch
from torch import Tensor

from graphgps_kmip.errors import TrainingDiverged
from graphgps_kmip.task.task import Task
from graphgps_kmip.train.distributed import all_reduce, gather_rows


class MetricAccumulator:
    """Collects (total, weight) of each global batch, and this process's scores and labels, without waiting for CUDA."""

    def __init__(self) -> None:
        self.sums: list[Tensor] = []  # (2,) each: total and weight of the loss over all processes
        self.scores: list[Tensor] = []
        self.labels: list[Tensor] = []
        self._checked = 0

    def add(self, sums: Tensor, score: Tensor, true: Tensor) -> None:
        """Add one batch: the reduced `(total, weight)`, and the local score and labels."""
        self.sums.append(sums)
        self.scores.append(_to_cpu(score))
        self.labels.append(_to_cpu(true))

    def check(self, where: str) -> None:
        """Check the losses added since the last call.

        Raises:
            TrainingDiverged: one of them is NaN or infinite; names the first such batch, `where` says the pass.
        """
        added = self.sums[self._checked :]
        if not added:
            return
        losses = _losses(added)
        bad = (~torch.isfinite(losses)).nonzero().flatten()
        if len(bad):
            first = int(bad[0])
            raise TrainingDiverged(f"The loss is {float(losses[first])} in {where}, batch {self._checked + first}.")
        self._checked = len(self.sums)

    def summary(self, task: Task, device: torch.device) -> dict[str, float]:
        r"""Return the loss and the metrics of the whole split.

        .. math:: loss = \sum_b n_b \, loss_b / \sum_b n_b

        as GraphGym reports it, `n_b` the rows (graphs, or nodes in node tasks) of global batch b; the metrics see all
        rows at once, in float32.
        """
        losses = _losses(self.sums)  # first: its copy to the CPU waits for the copies of `_to_cpu`
        rows = all_reduce(torch.tensor([len(true) for true in self.labels], device=device)).cpu().double()
        score = gather_rows(torch.cat(self.scores), device)
        true = gather_rows(torch.cat(self.labels), device)
        metrics = {name: float(metric(score, true)) for name, metric in task.metrics.items()}
        return {"loss": float((losses * rows).sum() / rows.sum()), **metrics}


def _losses(sums: list[Tensor]) -> Tensor:
    total, weight = torch.stack(sums).cpu().double().unbind(dim=1)
    return total / weight


def _to_cpu(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.is_floating_point():
        tensor = tensor.float()
    return tensor.to("cpu", non_blocking=True)
