"""Hyper-parameter searches: which trials are asked for, the race over seeds, the choice, final seeds and kills."""

from __future__ import annotations

import json
import multiprocessing
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from graphgps_kmip.experiments.experiment_spec import Training
from graphgps_kmip.experiments.hyperparameter_search import (
    Run,
    SearchRecord,
    list_trials,
    make_record,
    run_search,
)
from graphgps_kmip.experiments.run_status import State, Status, failure_file, run_status
from graphgps_kmip.experiments.search_space import Factor, Space, coordinate_search, draw_choices, searches
from tests.experiments.search_cases import FACTORS, RANGES, TOGETHER, TRIALS, Recorder, Score, scores, toy
from tests.processes import HANGS

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


def read_record(out: Path, trials: int, ranges: Any = RANGES, engine: str = "random") -> SearchRecord | None:
    """Return the record of the search of the toy that is on disk."""
    (search,) = searches(toy(), ranges)
    return make_record(search, list_trials(search, partial(run_status, out=out, compute_hash=str), trials, engine))


def asked(out: Path, *limits: int) -> list[dict[str, str]]:
    """Return the configurations of a search that is started with each of these limits in turn."""
    for limit in limits:
        run_search(toy(seeds=(0,)), "tpe", WIDE, Recorder(out, below), out, trials=limit)
    return [dict(trial.choice) for trial in read_record(out, limits[-1], WIDE, "tpe").tried]


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
    scores = dict(zip(map(SPACE.tag, FIRST), first, strict=True))
    assert coordinate_search(SPACE, scores) == ([together] if together else [])


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
    assert f"Chosen: `{choice}`, validation f1 {value} (seed 0)." in page
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
    assert run_search(toy(), engine, RANGES, third, tmp_path, **options) == [resumed]
    assert third.trained == []


def test_trials_of_other_ranges_are_not_those_of_a_search(tmp_path: Path) -> None:
    options = {"trials": 3}
    run_search(toy(), "tpe", RANGES, Recorder(tmp_path, RISING), tmp_path, **options)
    assert read_record(tmp_path, **options).trials == 3
    assert read_record(tmp_path, ranges={"toy": RANGES["toy"] | {"fixed": {"gt.n_heads": 2}}}, **options) is None


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
    assert len(recorder.trained) == 2 + (5 if engine == "linear" else 4) - 1 if ends else len(recorder.trained) == 3


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


def test_an_engine_or_number_of_trials_that_cannot_tune_equally_is_refused(tmp_path: Path) -> None:
    equal = {"toy": RANGES["toy"] | {"tuning": {"trials": 4, "seeds": [7]}}}
    for engine, trials, what in (("linear", None, "linear"), ("tpe", 4, "tpe"), ("random", 3, "--trials 3")):
        message = f"toy gives every model 4 trials, as its ranges say, which {what} would not: use --search random"
        with pytest.raises(ValueError, match=message):
            run_search(toy(), engine, equal, Recorder(tmp_path, scores()), tmp_path, trials)


def test_without_optuna_a_search_of_more_than_a_round_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert len(asked(tmp_path, 10)) == 10
    with pytest.raises(ValueError, match="more than 10 trials need optuna: pip install optuna, or 'graphgps_kmip"):
        asked(tmp_path, 11)


def test_tpe_starts_at_the_default_stays_in_the_ranges_and_goes_where_the_score_is_large(tmp_path: Path) -> None:
    choices = asked(tmp_path, 24)
    assert choices[0] == {"a": "3", "b": "3"}
    assert all(choice[name] in map(str, range(8)) for choice in choices for name in ("a", "b"))
    late = [int(choice["a"]) for choice in choices[10:]]  # the first ten are random
    assert sum(value <= 1 for value in late) > len(late) / 3  # a fourth by chance, and each configuration is drawn once
    assert len({tuple(choice.items()) for choice in choices}) == 24
    best = next(choice for choice in choices if choice["a"] == "0")
    assert f"Chosen: `search-a0-b{best['b']}`" in (tmp_path / "search/toy/kmip-tpe.md").read_text()


def test_a_tpe_search_that_continues_asks_as_one_that_was_not_interrupted(tmp_path: Path) -> None:
    whole = asked(tmp_path / "whole", 24)
    assert asked(tmp_path / "parts", 3, 10, 24) == whole


def test_the_first_draws_are_those_of_optuna() -> None:
    import optuna

    space = Space(tuple(Factor(name, "3", {str(value): {} for value in range(8)}) for name in ("a", "b")))
    ranges = {name: optuna.distributions.CategoricalDistribution(list(map(str, range(8)))) for name in ("a", "b")}
    study = optuna.create_study()
    drawn = draw_choices(space, [], [], 20)
    assert (drawn[0], len(drawn)) == (space.default, 20)
    assert drawn == drawn[:6] + draw_choices(space, drawn[:6], [0.0] * 6, 20)  # whatever the scores
    for seed in range(1, 6):
        study.sampler = optuna.samplers.TPESampler(seed=seed)
        assert study.ask(ranges).params == drawn[seed]


def test_a_small_space_has_fewer_trials(tmp_path: Path) -> None:
    run_search(toy(), "tpe", RANGES, Recorder(tmp_path, RISING), tmp_path, trials=30)
    assert read_record(tmp_path, 30).trials == 6


RACE = {"toy": RANGES["toy"] | {"tuning": {"trials": 6, "seeds": [7, 8, 9], "keep": 3, "set": {"optim.max_epoch": 5}}}}


class Racer(Recorder):
    """Runs whose score depends on their seed: tag of a training -> score of each seed."""

    by_seed: dict[str, tuple[float | Exception, ...]] = {}  # noqa: RUF012

    def _write(self, training: Training, seed: int) -> Status:
        values = self.by_seed.get(training.tag, (0.1, 0.1, 0.1))
        self.score = lambda _: values[seed - 7] if seed > 6 else 0.5
        return super()._write(training, seed)


def race(out: Path, **by_seed: Any) -> tuple[Racer, SearchRecord | None]:
    """Return what a search by racing ran, and its record."""
    runner = Racer(out, scores())
    runner.by_seed = {f"search-{name}".replace("_", "-").replace("lr001", "lr0.01"): of for name, of in by_seed.items()}
    run_search(toy(), "random", RACE, runner, out)
    return runner, read_record(out, 6, RACE)


def test_the_best_trials_of_the_first_seed_run_with_the_others_and_the_largest_mean_is_chosen(tmp_path: Path) -> None:
    entries = {"default": (0.9, 0.2, 0.3), "lr001": (0.8, 0.7, 0.9), "depth8": (0.7, 0.6, 0.5), "depth2": (0.6, 1, 1)}
    runner, record = race(tmp_path, **entries)
    firsts, others, finals = runner.trained[:6], runner.trained[6:12], runner.trained[12:]
    assert all(name.endswith("/7") for name in firsts)
    assert sorted(others) == [f"search-{name}/{seed}" for name in ("default", "depth8", "lr0.01") for seed in (8, 9)]
    assert finals == ["search-lr0.01/0", "search-lr0.01/1"]
    assert (record.choice["lr"], record.value, record.seeds) == ("0.01", pytest.approx(0.8), "seeds 7, 8, 9")
    assert [len(trial.runs) for trial in record.tried].count(3) == 3
    page = (tmp_path / "search/toy/kmip-random.md").read_text()
    assert "| `search-lr0.01` | done | 0.8 0.7 0.9 | 3 min 3 s | 1234 |" in page
    assert "6 trials, 0 failed, 12 min 12 s together. Chosen: `search-lr0.01`, validation f1 0.8 (seeds" in page


def test_of_equal_means_the_earliest_is_chosen_and_one_that_fails_with_a_further_seed_loses(tmp_path: Path) -> None:
    lost = FloatingPointError("nan")
    _, record = race(tmp_path, default=(0.6, 0.6, 0.6), lr001=(0.7, 0.6, 0.5), depth8=(0.9, 0.9, lost))
    assert (record.choice, record.failed) == ({"lr": "0.1", "depth": "4"}, 1)


def test_a_race_that_is_killed_goes_on(tmp_path: Path) -> None:
    whole, _ = race(tmp_path / "whole")
    for limit in (2, 6, 20):  # amid the first seeds, amid the others
        runner = Recorder(tmp_path, scores(), limit=limit)
        if limit < 20:
            with pytest.raises(KeyboardInterrupt):
                run_search(toy(), "random", RACE, runner, tmp_path)
            assert read_record(tmp_path, 6, RACE) is None
        else:
            run_search(toy(), "random", RACE, runner, tmp_path)
    assert len(runner.trained) == len(whole.trained) - 8


def test_seeds_of_trials_are_on_splits_of_their_own_and_the_row_has_all_splits(tmp_path: Path) -> None:
    experiment = toy()
    (training,) = experiment.trainings
    splits = Training(training.point, training.cfg, training.seeds, splits=True)
    (search,) = searches(type(experiment)("toy", "", trainings=(splits,)), RACE)
    assert search.describe_seeds() == "seeds 7, 8, 9 on splits 0, 1, 2"
    for trained, split, seed in (
        (search.trial(search.space.default), "0", 7),
        (search.trial(search.space.default, 2), "2", 9),
        (search.finals(search.space.default)[0], "1", 1),
    ):
        argv = trained.arguments(seed, tmp_path)
        assert argv[argv.index("dataset.split_index") + 1] == split
        assert seed in trained.seeds
        assert ("optim.max_epoch" in argv) is (seed > 1)


def test_a_failed_trial_is_a_trial_and_the_record_says_so(tmp_path: Path) -> None:
    runner = Recorder(tmp_path, scores(default=FloatingPointError("out of memory"), lr001_depth8=0.9))
    (outcome,) = run_search(toy(seeds=(0,)), "tpe", RANGES, runner, tmp_path, trials=12)
    assert len(runner.trained) == len(set(runner.trained)) == 6
    assert outcome.line == "Toys/kmip: lr 0.01, depth 8, validation f1 0.9"
    record = read_record(tmp_path, 12)
    assert (record.trials, record.failed) == (6, 1)
    assert record.tried[0].statuses[0].error == "out of memory"


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
