"""The trials of a search as jobs."""

from __future__ import annotations

from pathlib import Path

from graphgps_kmip.experiments.hyperparameter_search import runner_of
from graphgps_kmip.experiments.job_runner import Setup
from graphgps_kmip.experiments.run_status import State
from tests.experiments.project import make_project, order, training


def test_runs_are_told_of_as_they_end_and_finished_ones_are_not_repeated(tmp_path: Path) -> None:
    place = make_project(tmp_path)
    runs = [(training("GCN"), 0), (training("GAT", do="diverge"), 0), (training("GCN"), 1)]
    told: list[tuple[str, int, State]] = []
    runner = runner_of(place, Setup(place.root))
    statuses = runner(runs, lambda run, status: told.append((run[0].point["model"], run[1], status.state)))
    assert [status.state for status in statuses] == [State.DONE, State.DIVERGED, State.DONE]
    assert statuses[1].error == "the loss is nan"
    assert told == [("GCN", 0, State.DONE), ("GAT", 0, State.DIVERGED), ("GCN", 1, State.DONE)]
    again = runner(runs, lambda run, status: told.append((run[0].point["model"], run[1], status.state)))
    assert again == statuses
    assert told[3:] == told[:3]
    assert order(place.root) == ["gcn/0", "gat/0", "gcn/1"]
