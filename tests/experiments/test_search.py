"""Hyper-parameter searches: which trials are asked for, the choice, the final seeds, kills and several processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from graphgps_kmip.experiments import hyperparameter_search
from graphgps_kmip.experiments.hyperparameter_search import (
    Run,
    StorageLock,
    coordinate_search,
    open_study,
    read_search,
    run_search,
)
from graphgps_kmip.experiments.run_status import State, Status, failure_file
from graphgps_kmip.experiments.search_space import Factor, Space
from tests.experiments.search_cases import FACTORS, RANGES, TOGETHER, TRIALS, Recorder, Score, scores, toy
from tests.processes import HANGS, wait_for

RISING = scores(lr001=0.6, depth8=0.7, lr001_depth8=0.8)
ALL_MODELS = {"toy": RANGES["toy"] | {"searches": [{"where": {}, "factors": FACTORS}]}}
WIDE_FACTORS = {name: {"default": 3, "values": list(range(8)), "keys": [name]} for name in ("a", "b")}
WIDE = {"toy": {"source": "ours", "searches": [{"where": {}, "factors": WIDE_FACTORS}]}}
FORK = multiprocessing.get_context("fork")
SPACE = Space((Factor("lr", "0.1", {"0.1": {}, "0.01": {}}), Factor("depth", "4", {"2": {}, "4": {}, "8": {}})))
FIRST = [{"lr": lr, "depth": depth} for lr, depth in (("0.1", "4"), ("0.01", "4"), ("0.1", "2"), ("0.1", "8"))]


def below(tag: str) -> float:
    (a,) = [part[1:] for part in tag.split("-") if part[0] == "a"] or ["3"]
    return -float(a)


def study(out: Path, engine: str = "tpe") -> Any:
    return open_study(out / f"search/toy/kmip-{engine}.optuna.jsonl")


def asked(out: Path, *limits: int, together: int = 1) -> list[dict[str, str]]:
    """The configurations of a search that is started with each of these limits in turn."""
    for limit in limits:
        options = {"trials": limit, "together": together}
        run_search(toy(seeds=(0,)), "tpe", WIDE, Recorder(out, below), out, **options)
    return [trial.params for trial in study(out).trials]


def test_a_coordinate_search_tries_the_default_and_each_value_of_one_factor_at_a_time() -> None:
    assert coordinate_search(SPACE, {}) == FIRST
    assert coordinate_search(SPACE, {"search-default": 0.5, "search-depth2": None}) == [FIRST[1], FIRST[3]]


@pytest.mark.parametrize(
    ("first", "together"),
    [
        ((0.5, 0.6, 0.4, 0.7), {"lr": "0.01", "depth": "8"}),
        ((0.5, 0.4, 0.4, 0.7), None),  # depth 8 alone was tried
        ((0.5, 0.4, 0.4, 0.4), None),
        ((0.5, 0.6, 0.5, 0.5), None),  # of equals the default stays
        ((0.5, 0.6, 0.7, 0.7), {"lr": "0.01", "depth": "2"}),  # and then the first
        ((None, 0.1, None, 0.1), {"lr": "0.01", "depth": "8"}),  # what failed is never best
        ((None, None, None, None), None),
    ],
)
def test_best_values_are_put_together_once(first: tuple[float | None, ...], together: dict[str, str] | None) -> None:
    score_of = dict(zip(map(SPACE.tag, FIRST), first, strict=True))
    assert coordinate_search(SPACE, score_of) == ([together] if together else [])


@pytest.mark.parametrize(
    ("score", "metric_agg", "choice", "value"),
    [
        (RISING, "argmax", TOGETHER, "0.8"),
        (scores(lr001=0.6, depth8=0.7, lr001_depth8=0.65), "argmax", "search-depth8", "0.7"),  # best of all trials
        (scores(lr001=0.6, depth8=0.7, lr001_depth8=0.7), "argmax", "search-depth8", "0.7"),  # of equals the first
        (scores(lr001=0.4, depth2=0.3, lr001_depth2=0.2), "argmin", "search-lr0.01-depth2", "0.2"),
        (scores(default=MemoryError("out of memory"), lr001=0.6), "argmax", "search-lr0.01", "0.6"),
        (scores(default=float("nan"), lr001=0.6), "argmax", "search-lr0.01", "0.6"),
    ],
)
def test_linear_ends_with_the_combination(
    tmp_path: Path, score: Score, metric_agg: str, choice: str, value: str
) -> None:
    runner = Recorder(tmp_path, score, metric_agg=metric_agg)
    (outcome,) = run_search(toy(), "linear", RANGES, runner, tmp_path)
    assert runner.trained[:4] == [f"{tag}/0" for tag in TRIALS]
    assert runner.trained[-1] == f"{choice}/1"
    assert outcome.finished
    assert outcome.line.endswith(f", validation f1 {value}")
    page = outcome.log.read_text()
    assert f"Chosen: `{choice}`, validation f1 {value}." in page
    assert ("diverged: out of memory" in page) is isinstance(score("search-default"), MemoryError)
    assert ("its score is no number" in page) is (score("search-default") != score("search-default"))


def test_the_trial_log_has_ranges_trials_and_final_seeds_and_no_test_score_of_a_trial(tmp_path: Path) -> None:
    (outcome,) = run_search(toy(), "linear", RANGES, Recorder(tmp_path, RISING), tmp_path)
    page = outcome.log.read_text()
    assert outcome.log == tmp_path / "search/toy/kmip-linear.md"
    assert "| depth | 4 | 2, 4, 8 |" in page
    assert "| `search-depth8` | done | 0.7 | 1 min 1 s | 1234 |" in page
    assert f"| Toys/kmip-{TOGETHER} | 1 | done | 0.7 |" in page
    assert "test" not in page.split("Chosen:")[0].replace("test split", "")


def test_searches_go_side_by_side_and_where_all_trials_fail_the_others_go_on(tmp_path: Path) -> None:
    runners = {"GAT": Recorder(tmp_path, lambda _: FloatingPointError("nan")), "kMIP": Recorder(tmp_path, RISING)}
    calls = []

    def runner(runs: list[Run]) -> list[Status]:
        calls.append(len(runs))
        return [status for run in runs for status in runners[run[0].point["model"]]([run])]

    lost, choice = run_search(toy("GAT", "kMIP"), "linear", ALL_MODELS, runner, tmp_path)
    assert calls == [8, 1, 2]
    assert lost.line == "Toys/gat: no trial was finished, so there is nothing to choose from"
    assert (lost.finished, choice.finished) == (False, True)


@pytest.mark.parametrize(("engine", "limit"), [("linear", 1), ("linear", 5), ("tpe", 1), ("tpe", 4)])
def test_a_search_that_is_killed_goes_on_without_repeating_a_run(tmp_path: Path, engine: str, limit: int) -> None:
    options = {"trials": 6}
    whole, first = Recorder(tmp_path / "whole", RISING), Recorder(tmp_path, RISING, limit=limit)
    run_search(toy(), engine, RANGES, whole, tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        run_search(toy(), engine, RANGES, first, tmp_path, **options)
    second, third = Recorder(tmp_path, RISING), Recorder(tmp_path, RISING)
    (resumed,) = run_search(toy(), engine, RANGES, second, tmp_path, **options)
    assert first.trained + second.trained == whole.trained
    study_file = tmp_path / f"search/toy/kmip-{engine}.optuna.jsonl"
    study_file.unlink()  # without its study, too: the trials are found by their run folders
    assert run_search(toy(), engine, RANGES, third, tmp_path, **options) == [resumed]
    assert third.trained == []


def test_a_study_of_other_ranges_is_left_alone(tmp_path: Path) -> None:
    run_search(toy(), "tpe", RANGES, Recorder(tmp_path, RISING), tmp_path, trials=2)
    other = {"toy": RANGES["toy"] | {"fixed": {"gt.n_heads": 2}}}
    with pytest.raises(ValueError, match=r"kmip-tpe.optuna.jsonl is of other ranges .*: move it away to begin anew"):
        run_search(toy(), "tpe", other, Recorder(tmp_path, RISING), tmp_path)


def test_a_trial_that_failed_in_an_earlier_session_is_given_to_the_runner_again(tmp_path: Path) -> None:
    run_search(toy(), "linear", RANGES, Recorder(tmp_path, scores(lr001=0.6, depth8=MemoryError("full"))), tmp_path)
    failure_file(tmp_path / "Toys/kmip-search-depth8/0").unlink()
    again = Recorder(tmp_path, RISING)
    (outcome,) = run_search(toy(), "linear", RANGES, again, tmp_path)
    assert again.trained == ["search-depth8/0", f"{TOGETHER}/0", f"{TOGETHER}/1"]
    assert outcome.line == "Toys/kmip: lr 0.01, depth 8, validation f1 0.8"


@pytest.mark.parametrize("engine", ["linear", "tpe"])
@pytest.mark.parametrize("ends", [False, True])
def test_a_trial_of_another_process_is_left_to_it(ends: bool, engine: str, tmp_path: Path) -> None:
    recorder, attempts = Recorder(tmp_path, RISING), []

    def runner(runs: list[Run]) -> list[Status]:
        attempts.extend(run for run in runs if run[0].tag == "search-default")
        busy = [] if ends and len(attempts) > 1 else attempts
        return [Status(State.INTERRUPTED, tmp_path, {}) if run in busy else recorder([run])[0] for run in runs]

    (outcome,) = run_search(toy(), engine, RANGES, runner, tmp_path, trials=4)
    assert outcome.finished is ends
    assert ("1 trials are not finished: start the search again to go on" in outcome.line) is not ends
    assert (read_search(tmp_path / f"search/toy/kmip-{engine}.optuna.jsonl") is not None) is ends
    assert len(study(tmp_path, engine).trials) == (5 if ends and engine == "linear" else 4)


def test_followers_get_the_choice_with_settings_of_their_own(tmp_path: Path) -> None:
    also = [{"where": {"model": ["GAT"]}, "set": {"gt.layers": 7}, "tag": "layers7"}]
    ranges = {"toy": {"source": "ours", "searches": [RANGES["toy"]["searches"][0] | {"also": also}]}}
    runner = Recorder(tmp_path, RISING)
    run_search(toy("kMIP", "GAT"), "linear", ranges, runner, tmp_path)
    assert runner.trained[-2:] == [f"{TOGETHER}-layers7/0", f"{TOGETHER}-layers7/1"]
    record = json.loads((tmp_path / f"Toys/gat-{TOGETHER}-layers7/0/record.json").read_text())
    assert "'gt.layers', '7'" in record["config_hash"]


def test_runs_without_a_validation_split_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no validation split: a search has nothing to choose by"):
        run_search(toy(), "linear", RANGES, Recorder(tmp_path, lambda _: None), tmp_path)


def test_linear_search_cannot_tune_equally_and_is_refused(tmp_path: Path) -> None:
    equal = {"toy": RANGES["toy"] | {"tuning": {"trials": 4, "seed": 7}}}
    with pytest.raises(ValueError, match="toy gives every model the same number of trials, .* use --search tpe"):
        run_search(toy(), "linear", equal, Recorder(tmp_path, scores()), tmp_path)


def test_without_optuna_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match="optuna is not installed: pip install optuna, or 'graphgps_kmip"):
        run_search(toy(), "linear", RANGES, Recorder(tmp_path, scores()), tmp_path)


def test_tpe_starts_at_the_default_stays_in_the_ranges_and_goes_where_the_score_is_large(tmp_path: Path) -> None:
    choices = asked(tmp_path, 24)
    assert choices[0] == {"a": "3", "b": "3"}
    assert all(choice[name] in map(str, range(8)) for choice in choices for name in ("a", "b"))
    late = [int(choice["a"]) for choice in choices[10:]]  # the first ten are random
    assert sum(value <= 1 for value in late) > len(late) / 2  # a fourth by chance
    best = next(choice for choice in choices if choice["a"] == "0")
    assert choices.count(best) > 1  # of equals the one that was asked for first
    assert f"Chosen: `search-a0-b{best['b']}`" in (tmp_path / "search/toy/kmip-tpe.md").read_text()


def test_a_tpe_search_that_continues_asks_as_one_that_was_not_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = asked(tmp_path / "whole", 9)
    assert asked(tmp_path / "parts", 3, 6, 9) == whole
    monkeypatch.setattr(hyperparameter_search, "SEED", 100)
    assert asked(tmp_path / "other", 9) != whole


def test_trials_that_were_open_when_it_was_killed_are_run_before_new_ones(tmp_path: Path) -> None:
    options = {"trials": 8, "together": 3}
    for limit in (1, 3):  # the first ends its first trial, the second all three that were asked for together
        with pytest.raises(KeyboardInterrupt):
            run_search(toy(), "tpe", WIDE, Recorder(tmp_path, below, limit=limit), tmp_path, **options)
    assert [trial.state.name for trial in study(tmp_path).trials] == ["COMPLETE"] * 3 + ["RUNNING"] * 3


def test_a_half_written_line_of_the_storage_is_dropped(tmp_path: Path) -> None:
    asked(tmp_path, 4)
    with open(tmp_path / "search/toy/kmip-tpe.optuna.jsonl", "a") as torn:
        torn.write('{"op_code": 4, "wor')
    assert len(asked(tmp_path, 6)) == 6


def test_a_failed_trial_is_a_trial_repeated_ones_are_trained_once_and_the_record_says_so(tmp_path: Path) -> None:
    runner = Recorder(tmp_path, scores(default=FloatingPointError("out of memory"), lr001_depth8=0.9))
    options = {"trials": 12, "together": 4}
    (outcome,) = run_search(toy(seeds=(0,)), "tpe", RANGES, runner, tmp_path, **options)
    assert len(runner.trained) == len(set(runner.trained)) <= 6
    assert outcome.line == "Toys/kmip: lr 0.01, depth 8, validation f1 0.9"
    assert study(tmp_path).trials[0].state.name == "FAIL"
    record = read_search(tmp_path / "search/toy/kmip-tpe.optuna.jsonl")
    assert (record.trials, record.failed, len(record.tried)) == (12, 1, len(runner.trained))
    assert record.tried[0]["error"] == "out of memory"


@pytest.mark.parametrize("engine", ["linear", "tpe"])
def test_two_processes_may_run_the_same_search(tmp_path: Path, engine: str) -> None:
    def search() -> None:
        (outcome,) = run_search(toy(), engine, RANGES, Recorder(tmp_path, scores(depth8=0.7)), tmp_path)
        assert outcome.line == "Toys/kmip: depth 8, validation f1 0.7"

    processes = [FORK.Process(target=search) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(HANGS)
    assert [process.exitcode for process in processes] == [0, 0]
    states = [trial.state.name for trial in study(tmp_path, engine).trials]
    assert states == ["COMPLETE"] * {"linear": 4, "tpe": 30}[engine]


def test_a_process_that_is_killed_while_it_writes_leaves_no_lock(tmp_path: Path) -> None:
    file = tmp_path / "toy.optuna.jsonl"
    open_study(file)

    def hold() -> None:
        StorageLock(file).acquire()  # as Optuna does before it writes
        (tmp_path / "held").touch()
        time.sleep(HANGS)

    holder = FORK.Process(target=hold)
    holder.start()
    wait_for((tmp_path / "held").exists)
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(HANGS)
    assert not (tmp_path / "toy.optuna.jsonl.lock").is_symlink()  # Optuna's own lock, for which it waits 30 s
    assert open_study(file).ask().number == 0
