"""How much of an experiment is done."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from graphgps_kmip.experiments.experiment_spec import Experiment
from graphgps_kmip.experiments.run_status import HashOf, State, Status, command_status, run_status


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


def statuses(experiment: Experiment, out: Path, hash_of: HashOf, sample: bool = False) -> dict[Path, Status]:
    """Return folder -> how far it is, of every run and command."""
    found = [run_status(one, seed, out, hash_of, sample) for one in experiment.trainings for seed in one.seeds]
    found += [command_status(one, experiment, out, sample) for one in experiment.commands.values()]
    return {status.path: status for status in found}


def extent(experiment: Experiment, out: Path, hash_of: HashOf) -> Extent:
    """Count the runs of an experiment."""
    real, sample = (
        Counter(status.state for status in statuses(experiment, out, hash_of, kind).values()) for kind in (False, True)
    )
    failed = real[State.FAILED] + real[State.DIVERGED]
    return Extent(real.total(), real[State.DONE], failed, sample[State.DONE])
