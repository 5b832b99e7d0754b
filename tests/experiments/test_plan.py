"""Which jobs an experiment is, and in which order."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.experiment_spec import Need
from graphgps_kmip.experiments.jobs import (
    narrow_by_option,
    plan_jobs,
    plan_lines,
    plan_summary,
    with_needs,
    with_pending_needs,
)
from tests.experiments.project import command, experiment, make_project, training

A = experiment(
    "A",
    training("GCN", seeds=2),
    training("GPS+kMIP", seeds=2),
    commands=(command("bench"), command("look", Need("A", {"model": "GCN"}, seed=1))),
)
B = experiment(
    "B", commands=(command("later", Need("B", command="first")), command("first", Need("A", {"model": "GPS+kMIP"})))
)
ALL = {"A": A, "B": B}


def labels(tmp_path: Path, *keys: str, only: str = "", seeds: int | None = None) -> list[str]:
    return [job.label for job in plan_jobs(ALL, keys, make_project(tmp_path), only, seeds)]


def test_first_seeds_come_first_and_commands_last(tmp_path: Path) -> None:
    assert labels(tmp_path, "A") == [
        "A GCN seed 0", "A GPS+kMIP seed 0", "A GCN seed 1", "A GPS+kMIP seed 1", "A bench", "A look"
    ]  # fmt: skip


def test_needs_of_other_experiments_are_put_before_what_needs_them(tmp_path: Path) -> None:
    jobs = plan_jobs(ALL, ["B"], make_project(tmp_path))
    assert [job.label for job in with_pending_needs(jobs)] == ["A GPS+kMIP seed 0", "B first", "B later"]
    assert [job.label for job in with_needs(jobs)] == ["A GPS+kMIP seed 0", "B first", "B later"]


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("model=GPS+kMIP", ["A GPS+kMIP seed 0"]),
        ("model=GCN+GPS+kMIP", ["A GCN seed 0", "A GPS+kMIP seed 0"]),
        ("command=look", ["A look"]),
        ("command=look+bench,model=GCN", ["A GCN seed 0", "A look", "A bench"]),
    ],
)
def test_only_keeps_values_whose_names_may_have_pluses(tmp_path: Path, only: str, expected: list[str]) -> None:
    assert labels(tmp_path, "A", only=only, seeds=1) == expected


@pytest.mark.parametrize(
    ("keys", "only", "message"),
    [
        (["a "], "", "no experiment 'a '. Did you mean A?"),
        (["A"], "modle=GCN", "A has no axis 'modle'. Did you mean model?"),
        (["A"], "model=GCM", "model of A has no 'GCM'. Did you mean GCN?"),
        (["A"], "command=benhc", "command of A has no 'benhc'. Did you mean bench?"),
        (["A"], "model", "expected axis=value"),
    ],
)
def test_a_mistake_is_told_with_near_misses(tmp_path: Path, keys: list[str], only: str, message: str) -> None:
    with pytest.raises(ManifestError) as error:
        labels(tmp_path, *keys, only=only)
    assert message in str(error.value)


def test_experiments_that_share_a_run_run_it_once(tmp_path: Path) -> None:
    jobs = plan_jobs({"A": A, "C": experiment("C", training("GCN", seeds=3))}, ["A", "C"], make_project(tmp_path))
    paths = [job.path for job in jobs]
    assert len(paths) == len(set(paths)) == 7


def test_seeds_may_be_fewer_or_more_than_those_of_the_experiment() -> None:
    for seeds, expected in ((1, (0,)), (3, (0, 1, 2))):
        assert {row.seeds for row in narrow_by_option(A, "", seeds).trainings} == {expected}


def test_samples_have_roots_of_their_own(tmp_path: Path) -> None:
    jobs = plan_jobs(ALL, ["A"], make_project(tmp_path, sample=True))
    assert {job.path.relative_to(tmp_path / "results").parts[0] for job in jobs} == {"set-sample", "commands-sample"}
    assert jobs[-1].arguments[-1] == "results/set-sample/gcn/1"


def test_the_plan_says_of_each_command_how_far_it_is(tmp_path: Path) -> None:
    jobs = plan_jobs(ALL, ["A"], make_project(tmp_path), "model=GCN", seeds=1)
    argv = ["python", "main.py", *training("GCN").arguments(0, Path("results"))]
    assert plan_lines(jobs) == [f"{shlex.join(argv)}  # missing"]
    assert plan_summary(["A"], jobs) == "A: 1 job: 1 missing"
