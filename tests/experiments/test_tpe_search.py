"""Hyper-parameter search by Optuna's TPE: what it asks for, and where that is stored."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import optuna
import pytest

from graphgps_kmip.errors import ResultsError
from graphgps_kmip.experiments import hyperparameter_search
from graphgps_kmip.experiments.hyperparameter_search import Options, StorageLock, open_study, run_search
from tests.experiments.search_cases import RANGES, TRIALS, Recorder, Score, scores, toy
from tests.processes import HANGS, wait_for

FACTORS = {name: {"default": 3, "values": list(range(8)), "keys": [name]} for name in ("a", "b")}
WIDE = {"toy": {"source": "ours", "searches": [{"where": {}, "factors": FACTORS}]}}
FORK = multiprocessing.get_context("fork")


def below(tag: str) -> float:
    """A score that is larger where the factor a is smaller."""
    (a,) = [part[1:] for part in tag.split("-") if part[0] == "a"] or ["3"]
    return -float(a)


def asked(out: Path, *limits: int, together: int = 1, score: Score = below) -> list[dict[str, str]]:
    """The configurations of a search that is started with each of these limits in turn."""
    for limit in limits:
        runner = Recorder(out, score)
        run_search(toy(seeds=(0,)), "tpe", WIDE, runner, out, Options(trials=limit, together=together))
    return [trial.params for trial in stored(out / "search/toy/kmip-tpe.optuna.jsonl")]


def stored(file: Path) -> list[optuna.trial.FrozenTrial]:
    return open_study(optuna, StorageLock(file)).trials


def test_it_starts_at_the_default_and_stays_in_the_ranges(tmp_path: Path) -> None:
    choices = asked(tmp_path, 9)
    assert len(choices) == 9
    assert choices[0] == {"a": "3", "b": "3"}
    assert all(choice[name] in map(str, range(8)) for choice in choices for name in ("a", "b"))
    assert len({choice["a"] for choice in choices}) > 3


def test_it_goes_where_the_score_is_large(tmp_path: Path) -> None:
    late = [int(choice["a"]) for choice in asked(tmp_path, 24)[10:]]  # the first ten are random
    assert sum(value <= 1 for value in late) > len(late) / 2  # a fourth by chance


def test_a_search_that_continues_asks_as_one_that_was_not_interrupted(tmp_path: Path) -> None:
    assert asked(tmp_path / "parts", 3, 6, 9) == asked(tmp_path / "whole", 9)


def test_another_seed_asks_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = asked(tmp_path / "one", 6)
    monkeypatch.setattr(hyperparameter_search, "SEED", 100)
    assert asked(tmp_path / "other", 6) != first


def test_trials_that_were_open_when_it_was_killed_are_run_before_new_ones(tmp_path: Path) -> None:
    options = Options(trials=8, together=3)
    for limit in (1, 3):  # the first ends its first trial, the second all three that were asked for together
        with pytest.raises(KeyboardInterrupt):
            run_search(toy(), "tpe", WIDE, Recorder(tmp_path, below, limit=limit), tmp_path, options)
    states = [trial.state.name for trial in stored(tmp_path / "search/toy/kmip-tpe.optuna.jsonl")]
    assert states == ["COMPLETE"] * 3 + ["RUNNING"] * 3


def test_a_half_written_line_of_the_storage_is_dropped(tmp_path: Path) -> None:
    asked(tmp_path, 4)
    with open(tmp_path / "search/toy/kmip-tpe.optuna.jsonl", "a") as torn:
        torn.write('{"op_code": 4, "wor')
    assert len(asked(tmp_path, 6)) == 6


@pytest.mark.parametrize("line", ["", "{", "[]", '{"kind": 3}'])
def test_a_damaged_storage_is_refused_in_one_line(tmp_path: Path, line: str) -> None:
    asked(tmp_path, 2)
    file = tmp_path / "search/toy/kmip-tpe.optuna.jsonl"
    file.write_text(f"{line}\n{file.read_text()}")
    with pytest.raises(ResultsError, match=r"kmip-tpe\.optuna\.jsonl is damaged .*: restore the file, or delete it"):
        asked(tmp_path, 3)


def test_a_search_trains_each_configuration_once_and_counts_those_asked_for(tmp_path: Path) -> None:
    runner = Recorder(tmp_path, scores(lr001_depth8=0.9))
    (outcome,) = run_search(toy(seeds=(0,)), "tpe", RANGES, runner, tmp_path, Options(trials=8, together=4))
    assert len(runner.trained) == len(set(runner.trained)) <= 6
    assert outcome.line == "Toys/kmip: lr 0.01, depth 8, validation f1 0.9"
    assert f"Optuna's TPE asked for 8 trials, {len(runner.trained)} of them different." in outcome.log.read_text()


def test_of_equal_trials_that_asked_for_first_is_chosen_though_it_is_asked_for_again(tmp_path: Path) -> None:
    choices = asked(tmp_path, 15)
    first = next(one for one in choices if one["a"] == "0")
    assert choices.count(first) > 1
    assert f"Toys/kmip-search-a0-b{first['b']}: test f1" in (tmp_path / "search/toy/kmip-tpe.md").read_text()


def test_a_trial_that_fails_or_is_pruned_is_a_trial_and_no_result_for_the_sampler(tmp_path: Path) -> None:
    score = scores(default=FloatingPointError("out of memory"))
    (outcome,) = run_search(toy(seeds=(0,)), "tpe", RANGES, Recorder(tmp_path, score), tmp_path, Options(trials=3))
    file = tmp_path / "search/toy/kmip-tpe.optuna.jsonl"
    study = open_study(optuna, StorageLock(file))
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert "diverged: out of memory" in outcome.log.read_text()
    pruned = study.ask({name: trial for name, trial in study.trials[0].distributions.items()})
    study.tell(pruned, state=optuna.trial.TrialState.PRUNED)
    run_search(toy(seeds=(0,)), "tpe", RANGES, Recorder(tmp_path, score), tmp_path, Options(trials=5))
    assert len(stored(file)) == 5


@pytest.mark.parametrize("engine", ["linear", "tpe"])
def test_a_search_that_an_earlier_version_began_repeats_no_finished_run(tmp_path: Path, engine: str) -> None:
    """Its journal and its study are left alone; the trials are known by their run folders."""
    options = Options(trials=6)
    whole, first = Recorder(tmp_path / "whole", scores()), Recorder(tmp_path, scores(), limit=3)
    run_search(toy(), engine, RANGES, whole, tmp_path / "whole", options)
    with pytest.raises(KeyboardInterrupt):
        run_search(toy(), engine, RANGES, first, tmp_path, options)
    folder = tmp_path / "search/toy"
    (folder / f"kmip-{engine}.optuna.jsonl").unlink()
    (folder / f"kmip-{engine}.jsonl").write_text(json.dumps({"kind": "trial", "name": TRIALS[0], "state": "done"}))
    if engine == "tpe":  # its study had the digest of the ranges for a name
        journal = optuna.storages.journal.JournalFileBackend(str(folder / "kmip-tpe.optuna.jsonl"))
        optuna.create_study(study_name="1f0c", storage=optuna.storages.JournalStorage(journal)).ask()
        (folder / "kmip-tpe.optuna.jsonl.lock").symlink_to(folder / "kmip-tpe.optuna.jsonl")  # it was killed
    second = Recorder(tmp_path, scores())
    (outcome,) = run_search(toy(), engine, RANGES, second, tmp_path, options)
    assert outcome.finished
    assert first.trained + second.trained == whole.trained


@pytest.mark.parametrize("engine", ["linear", "tpe"])
def test_two_processes_may_run_the_same_search(tmp_path: Path, engine: str) -> None:
    def search() -> None:
        (outcome,) = run_search(toy(), engine, RANGES, Recorder(tmp_path, scores(depth8=0.7)), tmp_path)
        assert outcome.line == "Toys/kmip: depth 8, validation f1 0.7"

    processes = [FORK.Process(target=search) for _ in range(3)]
    for one in processes:
        one.start()
    for one in processes:
        one.join(HANGS)
    assert [one.exitcode for one in processes] == [0, 0, 0]
    trials = stored(tmp_path / f"search/toy/kmip-{engine}.optuna.jsonl")
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * {"linear": 4, "tpe": 30}[engine]


Study = hyperparameter_search._Study
write_log = Study._write_log


def test_a_trial_that_another_process_ends_does_not_end_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_open_trials(study: Study) -> None:  # just after a new one was added, often one of a known configuration
        write_log(study)
        for one in study.study.trials:
            if one.state.name == "RUNNING":
                study.study.tell(one.number, 0.5)

    monkeypatch.setattr(Study, "_write_log", end_open_trials)
    (outcome,) = run_search(toy(), "tpe", RANGES, Recorder(tmp_path, scores()), tmp_path, Options(trials=14))
    assert outcome.finished
    assert len(stored(tmp_path / "search/toy/kmip-tpe.optuna.jsonl")) == 14


def test_a_trial_that_another_process_begins_is_none_of_a_search_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_a_trial(study: Study) -> None:
        write_log(study)
        if study.best and len(study.study.trials) == 1:
            study._add({"lr": "0.01", "depth": "8"})

    monkeypatch.setattr(Study, "_write_log", begin_a_trial)
    (outcome,) = run_search(toy(), "tpe", RANGES, Recorder(tmp_path, scores()), tmp_path, Options(trials=1))
    assert outcome.line == "Toys/kmip: the default, validation f1 0.5"
    record = json.loads((tmp_path / "search/toy/kmip-tpe.json").read_text())
    assert (record["trials"], [one["state"] for one in record["tried"]]) == (1, ["done"])


def test_a_process_that_is_killed_while_it_writes_leaves_no_lock(tmp_path: Path) -> None:
    file = tmp_path / "one.optuna.jsonl"
    open_study(optuna, StorageLock(file))

    def hold() -> None:
        study = open_study(optuna, StorageLock(file))
        study._storage._backend._lock.acquire()  # as Optuna does it before it writes
        (tmp_path / "held").touch()
        time.sleep(HANGS)

    holder = FORK.Process(target=hold)
    holder.start()
    wait_for((tmp_path / "held").exists)
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(HANGS)
    assert not (tmp_path / "one.optuna.jsonl.lock").is_symlink()  # Optuna's own lock, for which it waits 30 s
    assert open_study(optuna, StorageLock(file)).ask().number == 0


@pytest.mark.parametrize("engine", ["linear", "tpe"])
def test_without_optuna_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match="optuna is not installed: pip install optuna, or 'graphgps_kmip"):
        run_search(toy(), engine, RANGES, Recorder(tmp_path, scores()), tmp_path)
