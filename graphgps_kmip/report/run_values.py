"""Values of a finished run that tables show: test score, parameters, width, seconds of an epoch, peak memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from graphgps_kmip.common.json_files import is_number
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.experiments.run_status import Status
from graphgps_kmip.results.finished_runs import read_run_config
from graphgps_kmip.results.run_record import read_stats


def run_value(kind: str, status: Status) -> float:
    """Return one value of a finished run, of a kind of `VALUES`.

    Raises:
        ResultsError: its files do not hold the value, or are damaged.
    """
    try:
        return float(VALUES[kind](status))
    except (KeyError, TypeError) as error:
        raise ResultsError(
            f"{status.path} does not hold what {kind} is read from ({error!r}): train it again"
        ) from error


def _score(status: Status) -> float:
    metric, test = status.record["metric_best"], status.record["best"]["test"]
    if metric not in test or metric in ("auto", "loss"):
        raise ResultsError(
            f"{status.path} chose its epoch by {metric!r}, which is no metric of the test split: "
            f"set metric_best in its config to one of {', '.join(name for name in test if name != 'loss')}"
        )
    if not is_number(test[metric]):
        raise TypeError(f"{metric} is {test[metric]!r}")
    return test[metric]


def _epoch_seconds(status: Status) -> float:
    times = [line["time_epoch"] for line in read_stats(status.path, "train").values()]
    if not times:
        raise ResultsError(f"{status.path}/train/stats.json has no epoch: train it again")
    return statistics.fmean(times)


def _width(status: Status) -> int:
    # gt.dim_hidden must be equal to it where there is attention.
    return read_run_config(status.path, status.record)["gnn"]["dim_inner"]


def _memory_mb(status: Status) -> float:
    peak = status.record["peak_memory"]
    return peak.get("cuda", peak["ram"]) / 2**20


# epoch_seconds: mean duration of a training epoch, validation left out; hours: the whole run; memory_mb: peak memory of
# the device that trained, on a CPU that of the whole process.
VALUES: dict[str, Callable[[Status], float]] = {
    "score": _score,
    "epoch_seconds": _epoch_seconds,
    "hours": lambda status: status.record["wall_time"] / 3600,
    "params": lambda status: status.record["params"],
    "width": _width,
    "memory_mb": _memory_mb,
}
COSTS = {"epoch_seconds", "memory_mb"}  # what other work on the machine changes
TRIALS = "trials"  # of the search that chose a training's settings: no value of a run
