"""The search by Optuna's TPE."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from graphgps_kmip.experiments.hyperparameter_search import Options, run_search
from graphgps_kmip.experiments.search_space import Factor, Space
from graphgps_kmip.experiments.tuning.tpe import Study, tpe
from tests.experiments.search_cases import RANGES, Recorder, scores, toy

VALUES = [str(value) for value in range(8)]
SPACE = Space(tuple(Factor(name, "3", {value: {name: value} for value in VALUES}) for name in ("a", "b")))


def asked(study: Study, space: Space = SPACE, sessions: int = 1) -> list[dict[str, str]]:
    """All choices of a study that is resumed now and then; a choice scores by its factor a."""
    known: list[dict[str, str]] = []
    for session in range(1, sessions + 1):
        engine = tpe(space, Study(study.file, study.trials * session // sessions, study.together, study.seed))
        known, scored = [], None
        try:
            while True:
                batch = engine.send(scored)
                known += [dict(one.choice) for one in batch]
                scored = [-float(one.choice["a"]) for one in batch]
        except StopIteration:
            continue
    return known


def test_it_starts_at_the_default_and_stays_in_the_ranges(tmp_path: Path) -> None:
    choices = asked(Study(tmp_path / "one", trials=9))
    assert len(choices) == 9
    assert choices[0] == {"a": "3", "b": "3"}
    assert all(choice[name] in VALUES for choice in choices for name in ("a", "b"))
    assert len({choice["a"] for choice in choices}) > 3


def test_it_goes_where_the_score_is_large(tmp_path: Path) -> None:
    choices = asked(Study(tmp_path / "one", trials=24))
    late = [int(choice["a"]) for choice in choices[10:]]  # the first ten are random
    assert sum(value <= 1 for value in late) > len(late) / 2  # a fourth by chance


def test_a_study_that_is_resumed_asks_as_one_that_was_not(tmp_path: Path) -> None:
    whole = asked(Study(tmp_path / "whole", trials=9))
    assert asked(Study(tmp_path / "parts", trials=9), sessions=3) == whole


def test_another_seed_asks_otherwise(tmp_path: Path) -> None:
    first = asked(Study(tmp_path / "one", trials=6))
    assert asked(Study(tmp_path / "one", trials=6, seed=100)) != first


def test_what_was_open_when_it_was_killed_is_tried_again(tmp_path: Path) -> None:
    study = Study(tmp_path / "one", trials=8, together=3)
    engine = tpe(SPACE, study)
    next(engine)
    (*_, batch) = [engine.send([0.0, 0.0, None])]
    again = next(tpe(SPACE, study))
    assert [one.choice for one in again[3:]] == [one.choice for one in batch]


def test_another_range_begins_another_study(tmp_path: Path) -> None:
    asked(Study(tmp_path / "one", trials=4))
    wider = Space((*SPACE.factors, Factor("c", "x", {"x": {}, "y": {}})))
    choices = asked(Study(tmp_path / "one", trials=4), wider)
    assert len(choices) == 4
    assert choices[0] == {"a": "3", "b": "3", "c": "x"}


def test_a_half_written_line_of_the_storage_is_dropped(tmp_path: Path) -> None:
    study = Study(tmp_path / "one", trials=4)
    asked(study)
    with open(study.file, "a") as torn:
        torn.write('{"op_code": 4, "wor')
    assert len(asked(Study(study.file, trials=6))) == 6


def test_a_search_trains_each_configuration_once_and_counts_those_asked_for(tmp_path: Path) -> None:
    runner = Recorder(tmp_path, scores(lr001_depth8=0.9))
    (outcome,) = run_search(toy(seeds=(0,)), "tpe", RANGES, runner, tmp_path, Options(trials=8, together=4))
    assert len(runner.trained) == len(set(runner.trained)) <= 6
    assert outcome.line == "Toys/kmip: lr 0.01, depth 8, validation f1 0.9"
    assert f"Optuna's TPE asked for 8 trials, {len(runner.trained)} of them different." in outcome.journal.read_text()


def test_a_trial_that_fails_is_no_result_for_the_sampler(tmp_path: Path) -> None:
    runner = Recorder(tmp_path, scores(default=FloatingPointError("out of memory")))
    (outcome,) = run_search(toy(seeds=(0,)), "tpe", RANGES, runner, tmp_path, Options(trials=6))
    assert outcome.finished
    assert "diverged: out of memory" in outcome.journal.read_text()


def test_without_optuna_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match="optuna is not installed: pip install optuna, or 'graphgps_kmip"):
        run_search(toy(), "tpe", RANGES, Recorder(tmp_path, scores()), tmp_path)
