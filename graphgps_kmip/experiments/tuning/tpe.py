"""Optuna's tree-structured Parzen estimator (Bergstra et al., 2011) over the same ranges as the linear search."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphgps_kmip.errors import InputError
from graphgps_kmip.experiments.search_space import Engine, Proposal, Space
from graphgps_kmip.experiments.tuning.journal import drop_torn_line


@dataclass(frozen=True)
class Study:
    """Where a study is kept and how far it goes.

    Args:
        file: Optuna's own storage, one file.
        trials: configurations to ask for, those of earlier sessions counted; one that is asked for again costs nothing.
        together: configurations asked for at once. 1 knows most before it asks.
        seed: of the sampler.
    """

    file: Path
    trials: int = 30
    together: int = 1
    seed: int = 0


def tpe(space: Space, study: Study) -> Engine:
    """Try the default, then what Optuna's TPE asks for.

    The trials of earlier sessions come first: their runs are finished, but for those that were open when it was killed.
    The sampler is made anew for each trial, with a seed of its own: a resumed search asks for what an uninterrupted one
    would have asked for. A study belongs to its space and seed: another range begins another one in the same file.

    Raises:
        ValueError: Optuna is not installed.
    """
    optuna = _optuna()
    kept = _open(optuna, space, study)
    running, failed = optuna.trial.TrialState.RUNNING, optuna.trial.TrialState.FAIL
    batch: list[Any] = [trial for trial in kept.trials if trial.params]
    told = {trial.number for trial in batch if trial.state != running}
    batch += _ask(optuna, kept, space, study, study.together - len(batch) + len(told))
    while batch:
        why = [f"TPE {trial.number + 1}" if trial.number else "default" for trial in batch]
        proposals = [Proposal(trial.params, text) for trial, text in zip(batch, why, strict=True)]
        for trial, score in zip(batch, (yield proposals), strict=True):
            if trial.number not in told:
                kept.tell(trial.number, score, state=failed if score is None else None)
        batch = _ask(optuna, kept, space, study, study.together)
    asked = [space.tag(trial.params) for trial in kept.trials if trial.params]
    return f"Optuna's TPE asked for {len(asked)} trials, {len(set(asked))} of them different."


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise InputError(
            "--search tpe: optuna is not installed: pip install optuna, or 'graphgps_kmip[search]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # the journal says what became of each trial
    return optuna


def _open(optuna: Any, space: Space, study: Study) -> Any:
    study.file.parent.mkdir(parents=True, exist_ok=True)
    drop_torn_line(study.file)
    text = json.dumps([{factor.name: list(factor.values) for factor in space.factors}, study.seed])
    journal = optuna.storages.journal
    kept = optuna.create_study(
        study_name=hashlib.sha256(text.encode()).hexdigest()[:12],
        storage=journal.JournalStorage(journal.JournalFileBackend(str(study.file))),
        direction="maximize",
        load_if_exists=True,
    )
    for trial in kept.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        if trial.params.keys() != space.default.keys():  # killed while its values were written
            kept.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    if not kept.trials:
        kept.enqueue_trial(space.default)
    return kept


def _ask(optuna: Any, kept: Any, space: Space, study: Study, count: int) -> list[Any]:
    """Return so many new trials, as long as the study has fewer than it shall have."""
    ranges = {f.name: optuna.distributions.CategoricalDistribution(list(f.values)) for f in space.factors}
    known = sum(bool(trial.params) for trial in kept.trials)
    asked = []
    for number in range(known, min(study.trials, known + count)):
        kept.sampler = optuna.samplers.TPESampler(seed=study.seed + number)
        asked.append(kept.ask(ranges))
    return asked
