"""Searches from trials to final seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphgps_kmip.experiments.hyperparameter_search import Options, Run, run_search
from graphgps_kmip.experiments.run_status import State, Status, failure_file
from tests.experiments.search_cases import FACTORS, RANGES, TOGETHER, TRIALS, Recorder, scores, toy

LR = FACTORS["lr"] | {"values": [0.1]}
RISING = scores(lr001=0.6, depth8=0.7, lr001_depth8=0.8)


def test_linear_trains_the_trials_then_the_combination_then_the_other_final_seeds(tmp_path: Path) -> None:
    runner = Recorder(tmp_path, RISING)
    (outcome,) = run_search(toy(), "linear", RANGES, runner, tmp_path)
    assert runner.trained == [*(f"{tag}/0" for tag in TRIALS), f"{TOGETHER}/0", f"{TOGETHER}/1"]
    assert (tmp_path / "Toys" / f"kmip-{TOGETHER}" / "1" / "record.json").exists()
    assert outcome.finished
    assert outcome.line == "Toys/kmip: lr 0.01, depth 8, validation f1 0.8"
    assert outcome.log == tmp_path / "search" / "toy" / "kmip-linear.md"


def test_the_choice_is_the_best_of_all_trials_not_the_combination(tmp_path: Path) -> None:
    runner = Recorder(tmp_path, scores(lr001=0.6, depth8=0.7, lr001_depth8=0.65))
    run_search(toy(), "linear", RANGES, runner, tmp_path)
    assert runner.trained[-1] == "search-depth8/1"


def test_of_equal_trials_the_first_is_chosen(tmp_path: Path) -> None:
    runner = Recorder(tmp_path, scores(lr001=0.6, depth8=0.7, lr001_depth8=0.7))
    run_search(toy(), "linear", RANGES, runner, tmp_path)
    assert runner.trained[-1] == "search-depth8/1"


def test_an_error_is_minimised(tmp_path: Path) -> None:
    runner = Recorder(tmp_path, scores(lr001=0.4, depth2=0.3, depth8=0.7, lr001_depth2=0.2), metric_agg="argmin")
    (outcome,) = run_search(toy(), "linear", RANGES, runner, tmp_path)
    assert runner.trained[-2:] == ["search-lr0.01-depth2/0", "search-lr0.01-depth2/1"]
    assert outcome.line.endswith("lr 0.01, depth 2, validation f1 0.2")


@pytest.mark.parametrize(
    ("failure", "listed"),
    [(MemoryError("out of memory"), "diverged: out of memory"), (float("nan"), "done: its score is no number")],
)
def test_a_trial_that_fails_loses_and_is_listed(tmp_path: Path, failure: float | Exception, listed: str) -> None:
    runner = Recorder(tmp_path, scores(default=failure, lr001=0.6))
    (outcome,) = run_search(toy(), "linear", RANGES, runner, tmp_path)
    assert runner.trained[-1] == "search-lr0.01/1"
    assert outcome.finished
    assert f"| {listed} |" in outcome.log.read_text()


def test_where_all_trials_fail_the_other_searches_go_on(tmp_path: Path) -> None:
    ranges = {"toy": RANGES["toy"] | {"searches": [{"where": {}, "factors": FACTORS}]}}
    runners = {"GAT": Recorder(tmp_path, lambda _: FloatingPointError("nan")), "kMIP": Recorder(tmp_path, RISING)}

    def runner(runs: list[Run], ended: Callable[[Run, Status], None]) -> list[Status]:
        return [status for run in runs for status in runners[run[0].point["model"]]([run], ended)]

    lost, found = run_search(toy("GAT", "kMIP"), "linear", ranges, runner, tmp_path)
    assert not lost.finished
    assert lost.line == "Toys/gat: no trial was finished, so there is nothing to choose from"
    assert found.finished


@pytest.mark.parametrize(("engine", "limit"), [("linear", 1), ("linear", 4), ("linear", 5), ("tpe", 1), ("tpe", 4)])
def test_a_search_that_is_killed_goes_on_without_repeating_a_run(tmp_path: Path, engine: str, limit: int) -> None:
    options = Options(trials=6)
    whole = Recorder(tmp_path / "whole", RISING)
    run_search(toy(), engine, RANGES, whole, tmp_path / "whole", options)
    first = Recorder(tmp_path, RISING, limit=limit)
    with pytest.raises(KeyboardInterrupt):
        run_search(toy(), engine, RANGES, first, tmp_path, options)
    second, third = Recorder(tmp_path, RISING), Recorder(tmp_path, RISING)
    (resumed,) = run_search(toy(), engine, RANGES, second, tmp_path, options)
    assert first.trained + second.trained == whole.trained
    (again,) = run_search(toy(), engine, RANGES, third, tmp_path, options)
    assert third.trained == []
    assert again == resumed


def test_the_trial_log_grows_while_the_trials_run(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_search(toy(), "linear", RANGES, Recorder(tmp_path, RISING, limit=2), tmp_path)
    page = (tmp_path / "search" / "toy" / "kmip-linear.md").read_text()
    states = [line.split("|")[-3].strip() for line in page.splitlines() if "`search-" in line]
    assert states == ["done", "done", "waiting", "waiting"]


@pytest.mark.parametrize("engine", ["linear", "tpe"])
@pytest.mark.parametrize("other", [{"fixed": {"gt.n_heads": 2}}, {"searches": [{"where": {}, "factors": {"lr": LR}}]}])
def test_a_storage_of_other_ranges_is_left_alone(tmp_path: Path, engine: str, other: dict[str, Any]) -> None:
    run_search(toy(), engine, RANGES, Recorder(tmp_path, RISING), tmp_path, Options(trials=2))
    before = (tmp_path / "search" / "toy" / f"kmip-{engine}.md").read_text()
    message = f"kmip-{engine}.optuna.jsonl is of other ranges than those of today: move it away to begin anew"
    with pytest.raises(ValueError, match=message):
        run_search(toy(), engine, {"toy": RANGES["toy"] | other}, Recorder(tmp_path, RISING), tmp_path)
    assert (tmp_path / "search" / "toy" / f"kmip-{engine}.md").read_text() == before


def test_a_trial_that_failed_in_an_earlier_session_is_given_to_the_runner_again(tmp_path: Path) -> None:
    run_search(toy(), "linear", RANGES, Recorder(tmp_path, scores(lr001=0.6, depth8=MemoryError("full"))), tmp_path)
    failure_file(tmp_path / "Toys/kmip-search-depth8/0").unlink()
    again = Recorder(tmp_path, RISING)
    (outcome,) = run_search(toy(), "linear", RANGES, again, tmp_path)
    assert again.trained == ["search-depth8/0", f"{TOGETHER}/0", f"{TOGETHER}/1"]
    assert outcome.line == "Toys/kmip: lr 0.01, depth 8, validation f1 0.8"


def test_a_trial_that_is_not_finished_stops_the_search_before_it_chooses(tmp_path: Path) -> None:
    def used_elsewhere(runs: list[Run], _: Callable[[Run, Status], None]) -> list[Status]:
        return [Status(State.INTERRUPTED, one.run_dir(seed, tmp_path), {}) for one, seed in runs]

    (outcome,) = run_search(toy(), "linear", RANGES, used_elsewhere, tmp_path)
    assert not outcome.finished
    assert outcome.line == "Toys/kmip: 4 trials are not finished: start the search again to go on"
    assert "## Choice" not in outcome.log.read_text()


def test_the_trials_of_all_searches_are_handed_to_the_runner_together(tmp_path: Path) -> None:
    ranges = {"toy": RANGES["toy"] | {"searches": [{"where": {}, "factors": FACTORS}]}}
    runner = Recorder(tmp_path, RISING)
    run_search(toy("GAT", "kMIP"), "linear", ranges, runner, tmp_path)
    assert [len(call) for call in runner.calls] == [8, 2, 4]


def test_followers_get_the_choice_with_settings_of_their_own(tmp_path: Path) -> None:
    also = [{"where": {"model": ["GAT"]}, "set": {"gt.layers": 7}, "tag": "layers7"}]
    ranges = {"toy": {"source": "ours", "searches": [RANGES["toy"]["searches"][0] | {"also": also}]}}
    runner = Recorder(tmp_path, RISING)
    (outcome,) = run_search(toy("kMIP", "GAT"), "linear", ranges, runner, tmp_path)
    assert runner.trained[-2:] == [f"{TOGETHER}-layers7/0", f"{TOGETHER}-layers7/1"]
    assert (tmp_path / "Toys" / f"gat-{TOGETHER}-layers7" / "0").is_dir()
    assert "gt.layers 7" in outcome.log.read_text()


def test_a_run_without_a_validation_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no validation split: a search has nothing to choose by"):
        run_search(toy(), "linear", RANGES, Recorder(tmp_path, lambda _: None), tmp_path)


def test_an_unknown_engine_is_told_with_near_misses(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no engine 'linaer'. Did you mean linear?"):
        run_search(toy(), "linaer", RANGES, Recorder(tmp_path, RISING), tmp_path)
