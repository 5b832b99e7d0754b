"""Every experiment as a sample, from plan to table: one of its trainings by default, its commands with -m slow."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import main
from graphgps_kmip.experiments.experiment_spec import Experiment
from graphgps_kmip.experiments.jobs import Place, plan_jobs, with_pending_needs
from graphgps_kmip.experiments.run_status import State
from graphgps_kmip.gym import experiment as gym_experiment
from graphgps_kmip.gym.planned_runs import planned_hash
from graphgps_kmip.report.result_table import ResultTable, build_table
from graphgps_kmip.report.table_formats import FORMATS
from tests.experiments.repository import EXPERIMENTS, PRINTED, ROOT
from tests.processes import python

HASH_OF = partial(planned_hash, root=ROOT)
# Experiments of equal first trainings are tried once.
TRAINED = {row.trainings[0].cfg: row for row in EXPERIMENTS.values() if row.trainings}


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    before = logging.root.handlers[:]
    yield
    logging.root.handlers = before


def values(table: ResultTable) -> list[float]:
    return [value for row in table.rows.values() for cell in row.values() if cell.ours for value in cell.ours.values]


def tables(experiment: Experiment, out: Path, sample: bool, trained: bool = False) -> list[ResultTable]:
    specs = [spec for spec in experiment.tables.values() if not trained or spec.value != "cells"]
    return [build_table(experiment, spec, PRINTED, out, HASH_OF, sample) for spec in specs]


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("experiment", TRAINED.values(), ids=lambda row: row.id)
def test_a_training_goes_from_plan_to_table_as_a_sample(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(gym_experiment, "draw_pictures", lambda *_, **__: None)  # no table needs them
    job = plan_jobs(EXPERIMENTS, [experiment.id], Place(ROOT, tmp_path, HASH_OF, sample=True), "", 1)[0]
    assert job.status().state is State.MISSING
    assert main.run(list(job.arguments[1:])) == 0
    assert job.status().state is State.DONE
    for table in tables(experiment, tmp_path, sample=True, trained=True):
        assert values(table)
        assert all("SAMPLE" in write(table, partial=True) for name, write in FORMATS.items() if name != "csv")
        assert not any(cell.printed for row in table.rows.values() for cell in row.values())
    assert not any(values(table) for table in tables(experiment, tmp_path, sample=False))


@pytest.mark.slow
@pytest.mark.parametrize("experiment", [row for row in EXPERIMENTS.values() if row.commands], ids=lambda row: row.id)
def test_the_commands_of_an_experiment_run_as_samples(experiment: Experiment, tmp_path: Path) -> None:
    place = Place(ROOT, tmp_path, HASH_OF, sample=True)
    jobs = with_pending_needs(plan_jobs(EXPERIMENTS, [experiment.id], place, "", 1))
    argv = ["run/reproduce.py", "run", experiment.id, "--sample", "--seeds", "1", "--out", str(tmp_path)]
    python(*argv, check=True)
    assert all(job.status().state is State.DONE for job in jobs)
    for table in tables(experiment, tmp_path, sample=True):
        assert values(table) or table.id in EMPTY_ON_A_CPU


EMPTY_ON_A_CPU = ("kmip-paper/table15", "kmip-paper/table16")
