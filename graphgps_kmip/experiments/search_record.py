"""Record of a finished hyper-parameter search: what was tried, what that cost, and the settings that it chose."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.common.json_files import read_artefact
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.experiments.experiment_spec import Training
from graphgps_kmip.experiments.run_status import read_failure
from graphgps_kmip.experiments.trial_log import Trial, TrialLog
from graphgps_kmip.results.run_folder import writing

EQUAL = "tpe"  # the engine that gives every training as many trials as --trials sets


@dataclass(frozen=True)
class SearchRecord:
    """What a search tried, what that cost, and what it chose.

    Args:
        config (str): Folder of the training that was searched, without its choice.
        trials (int): Configurations that were asked for, repeated and failed ones counted.
        failed (int): Trials without a validation score.
        seconds (float): Of all trials together, failed ones included.
        seed (int): Of the trials.
        config_hash (str): Of the chosen trial: a choice among trials of other settings than today's does not count.
        metric (str): That chose.
        value (float): Its value on validation, of the chosen trial.
        choice (Mapping): Factor -> name of its value.
        ranges (Mapping): Factor -> default and names of all values.
        fixed (Mapping): Settings of every trial.
        settings (Mapping): Those of the choice, dotted key -> value.
        tried (list): Each configuration once: tag, differences from the default, state, value, seconds, parameters.
            Empty where the choice was published with the experiment.
    """

    config: str
    trials: int
    failed: int
    seconds: float
    seed: int
    config_hash: str
    metric: str
    value: float
    choice: Mapping[str, str]
    ranges: Mapping[str, Any]
    fixed: Mapping[str, Any]
    settings: Mapping[str, Any]
    tried: Sequence[Mapping[str, Any]]

    @property
    def published(self) -> bool:
        """Return whether the choice is a published one, instead of that of a search below the root of the results."""
        return not self.tried


def search_file(experiment: str, training: Training, out: Path, sample: bool, engine: str = EQUAL) -> Path:
    """Return the record of a training's search; its trial log and the storage of its trials are beside it."""
    folder = out / f"search{'-sample' if sample else ''}" / experiment.replace("/", "-")
    return folder / f"{Path(training.folder).name}-{engine}.json"


def write_search(log: TrialLog, trials: Sequence[Trial], best: Trial, asked: int) -> None:
    """Write the record of a search beside its trial log; `asked` counts repeated configurations, too."""
    space, tried = log.search.space, [_facts(one) for one in trials]
    record = SearchRecord(
        config=log.search.training.folder,
        trials=asked,
        failed=sum(one["value"] is None for one in tried),
        seconds=round(sum(one["seconds"] for one in tried), 1),
        seed=log.search.seed,
        config_hash=best.status.record["config_hash"],
        metric=best.metric,
        value=best.value,
        choice=best.choice,
        ranges=space.ranges,
        fixed=space.fixed,
        settings=space.settings(best.choice),
        tried=tried,
    )
    file = log.file.with_suffix(".json")
    with writing(file):
        replace_file(file, (json.dumps(dataclasses.asdict(record), indent=1) + "\n").encode())


def _facts(trial: Trial) -> dict[str, Any]:
    record = trial.status.record
    return {
        "tag": trial.tag,
        "differs": dict(trial.differing),
        "state": str(trial.status.state),
        "error": trial.status.error,
        "value": trial.value,
        "seconds": record.get("wall_time") or read_failure(trial.status.path).get("seconds", 0.0),
        "params": record.get("params"),
    }


def read_search(file: Path) -> SearchRecord | None:
    """Return the record in a file, None if there is none.

    Raises:
        ResultsError: it is damaged.
    """
    if not file.exists():
        return None
    content = read_artefact(file)
    if content.keys() != {one.name for one in fields(SearchRecord)}:
        raise ResultsError(f"{file} is no record of a search: delete it and run the search again")
    return SearchRecord(**content)
