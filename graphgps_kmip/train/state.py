"""What a run knows besides its tensors: how far it is, and its best epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from graphgps_kmip.results.best_epoch import is_better
from graphgps_kmip.task.task import Task


@dataclass
class RunState:
    """The state after an epoch, as a checkpoint holds it.

    Args:
        epoch: the last completed epoch; -1: none.
        best: `epoch`, `value` (of the selecting metric) and the statistics of every split at the best epoch.
        val_loss: the last one evaluated, for reduce-on-plateau.
        seconds: spent in completed epochs, evaluation included, over all resumes.
    """

    epoch: int = -1
    best: dict[str, Any] = field(default_factory=dict)
    val_loss: float | None = None
    seconds: float = 0.0


def is_new_best(state: RunState, val_stats: dict[str, Any] | None, task: Task, last: bool) -> bool:
    """Return whether this epoch is the best so far; without a validation split the last epoch is the best."""
    if val_stats is None:
        return last
    return is_better(val_stats[task.metric_best], state.best.get("value"), task.maximize)
