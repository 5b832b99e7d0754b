"""A toy experiment to search, and a runner that writes records instead of training."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from graphgps_kmip.common.file_lock import held
from graphgps_kmip.experiments.experiment_spec import Experiment, Training
from graphgps_kmip.experiments.hyperparameter_search import Run
from graphgps_kmip.experiments.run_status import State, Status, failure_file, run_status

FACTORS = {
    "lr": {"default": 0.1, "values": [0.1, 0.01], "keys": ["optim.base_lr"]},
    "depth": {"default": 4, "values": [2, 4, 8], "keys": ["gt.layers"]},
}
RANGES = {"toy": {"source": "ours", "searches": [{"where": {"model": ["kMIP"]}, "factors": FACTORS}]}}
TRIALS = ["search-default", "search-lr0.01", "search-depth2", "search-depth8"]  # of the first round of linear
TOGETHER = "search-lr0.01-depth8"

Score = Callable[[str], float | Exception]  # tag of a training -> validation score, or how it fails


def toy(*models: str, seeds: tuple[int, ...] = (0, 1)) -> Experiment:
    trainings = tuple(Training({"model": model}, f"Toys/{model.lower()}.yaml", seeds) for model in models or ["kMIP"])
    return Experiment("toy", "A toy", trainings=trainings)


@dataclass
class Recorder:
    """Runs nothing: writes the records that runs would leave. Finished runs are not repeated, as by the real one."""

    out: Path
    score: Score
    metric_agg: str = "argmax"
    limit: int = 10**6  # runs until Ctrl-C
    sample: bool = False
    trained: list[str] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)

    def __call__(self, runs: list[Run]) -> list[Status]:
        self.calls.append([f"{training.tag}/{seed}" for training, seed in runs])
        statuses = []
        for run in runs:
            with held(self.out / "recorder.lock"):  # a real run holds its folder, too, and writes its records whole
                statuses.append(self._write(*run))
        return statuses

    def _write(self, training: Training, seed: int) -> Status:
        status = run_status(training, seed, self.out, str, self.sample)
        if status.state in (State.DONE, State.DIVERGED):
            return status
        if len(self.trained) == self.limit:
            raise KeyboardInterrupt
        self.trained.append(f"{training.tag}/{seed}")
        status.path.mkdir(parents=True, exist_ok=True)
        argv = str(training.arguments(seed, self.out, self.sample))
        score = self.score(training.tag)
        if isinstance(score, Exception):
            content = {"error": str(score), "exit_code": 3, "config_hash": argv}
            content |= {"seconds": 2.0, "date": "2026-11-20T08:00:00"}
            failure_file(status.path).write_text(json.dumps(content))
        else:
            best = {"epoch": 3, "value": score, "test": {"f1": (score or 0) - seed / 10}}
            record = {"finished": True, "config_hash": argv, "metric_best": "f1", "best": best}
            (status.path / "config.yaml").write_text(f"metric_agg: {self.metric_agg}\n")
            record |= {"wall_time": 61.0, "params": 1234, "finished_at": f"2026-11-2{seed % 10}T08:00:00"}
            record |= {"code_version": "abc1234", "hardware": {"cpu": "a CPU", "cores": 2, "memory_gb": 24.0}}
            (status.path / "record.json").write_text(json.dumps(record))
        return run_status(training, seed, self.out, str, self.sample)


def scores(**by_tag: float | Exception) -> Score:
    """Return a score by what a tag has: ``lr`` of ``search-lr0.01-depth8``, as ``lr001=..``; the largest counts."""
    return lambda tag: by_tag.get(tag.removeprefix("search-").replace(".", "").replace("-", "_"), 0.5)
