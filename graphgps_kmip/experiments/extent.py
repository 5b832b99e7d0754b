"""How much of an experiment is done."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from graphgps_kmip.experiments.records import Experiment
from graphgps_kmip.experiments.state import HashOf, State, command_status, run_status


@dataclass(frozen=True)
class Extent:
    """Numbers of runs and commands.

    Args:
        needed: all of them.
        done: finished, on real data.
        failed: failed or diverged, on real data.
        sampled: finished as samples.
    """

    needed: int
    done: int
    failed: int
    sampled: int


def extent(experiment: Experiment, out: Path, hash_of: HashOf) -> Extent:
    """Count the runs of an experiment."""
    real, sample = _states(experiment, out, hash_of, False), _states(experiment, out, hash_of, True)
    failed = real[State.FAILED] + real[State.DIVERGED]
    return Extent(real.total(), real[State.DONE], failed, sample[State.DONE])


def _states(experiment: Experiment, out: Path, hash_of: HashOf, sample: bool) -> Counter[State]:
    states = Counter(
        run_status(training, seed, out, hash_of, sample).state
        for training in experiment.trainings
        for seed in training.seeds
    )
    return states + Counter(
        command_status(command, experiment, out, sample).state for command in experiment.commands.values()
    )
