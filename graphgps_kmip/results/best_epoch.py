"""Best epoch of a run: one rule for training, checkpoints, curves and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping

from graphgps_kmip.common.atomic_write import is_number
from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.results.run_record import Line, metric_names


def is_better(value: float, old: float | None, maximize: bool) -> bool:
    """Return whether `value` replaces `old` as the best so far.

    Of equal values the first is kept. NaN and infinite values lose to finite ones.
    """
    if old is None:
        return True
    if not (math.isfinite(value) and math.isfinite(old)):
        return math.isfinite(value)
    return value > old if maximize else value < old


def best_epoch(run: Mapping[str, Mapping[int, Line]], metric_best: str = "auto", metric_agg: str = "argmax") -> int:
    """Return the best epoch on the validation split by `is_better`; the last epoch if there is no such split.

    Args:
        run: what `read_run` returns, at least one line.
        metric_best (str, optional): a metric, or ``auto``: the lowest loss. (default: ``"auto"``)
        metric_agg (str, optional): ``argmax`` or ``argmin``; not used for the loss. (default: ``"argmax"``)

    Raises:
        ResultsError: there is no line, or the lines have no such metric.
    """
    if not any(run.values()):
        raise ResultsError("there is no best epoch: the statistics of this run have no line; train it again")
    if "val" not in run:
        return max(epoch for lines in run.values() for epoch in lines)
    by_loss = metric_best in ("auto", "loss")
    name, maximize = ("loss", False) if by_loss else (metric_best, metric_agg == "argmax")
    best: tuple[int, float] | None = None
    for epoch, line in sorted(run["val"].items()):
        if not is_number(line.get(name)):
            raise ResultsError(
                f"metric_best: the results have no {name!r}.{suggest(name, ['loss', *metric_names(line)])}"
            )
        if is_better(line[name], best and best[1], maximize):
            best = epoch, line[name]
    return best[0]
