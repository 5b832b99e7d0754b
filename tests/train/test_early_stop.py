"""train.early_stop_patience: a training ends when its validation score has not become better for a while."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from graphgps_kmip.errors import InputError
from graphgps_kmip.results.finished_runs import read_finished
from tests.train.toy import TASK, VAL, last_checkpoint, make_loaders, read_stats, run

SCORES = (0.5, 0.3, 0.8, 0.8, 0.3, 0.7, 0.9, 0.1)  # the best one that comes in time is that of epoch 2


def scored(*scores: float, maximize: bool = True) -> dict:
    """Options of a run whose validation scores are these."""
    left = list(scores)
    metric = {"m": lambda _, true: left.pop(0) if len(true) == VAL else 0.0}
    return {"task": replace(TASK, metrics=metric, metric_best="m", maximize=maximize), "max_epoch": len(SCORES)}


def epochs(run_dir: Path, split: str) -> list[int]:
    return [line["epoch"] for line in read_stats(run_dir, split)]


@pytest.mark.parametrize(("patience", "last", "best"), [(1, 1, 0), (2, 4, 2), (3, 5, 2), (4, 7, 6), (0, 7, 6)])
def test_it_ends_so_many_epochs_after_the_best_one(patience: int, last: int, best: int, tmp_path: Path) -> None:
    record = run(tmp_path, **scored(*SCORES), early_stop_patience=patience)
    assert record["best"]["epoch"] == best
    assert epochs(tmp_path, "train") == epochs(tmp_path, "val") == list(range(last + 1))
    assert (record["epochs"], record["max_epoch"]) == (last + 1, len(SCORES))
    assert record["finished"]


def test_where_low_scores_are_good_high_ones_do_not_count(tmp_path: Path) -> None:
    assert run(tmp_path, **scored(*SCORES, maximize=False), early_stop_patience=2)["best"]["epoch"] == 1
    assert epochs(tmp_path, "train") == [0, 1, 2, 3]


def test_it_ends_at_an_evaluation(tmp_path: Path) -> None:
    run(tmp_path, **scored(0.5, 0.3, 0.3), early_stop_patience=3, eval_period=3)
    assert epochs(tmp_path, "val") == [0, 2, 5]
    assert epochs(tmp_path, "train") == list(range(6))


def test_the_epochs_before_are_those_of_a_run_that_goes_on(tmp_path: Path) -> None:
    run(tmp_path / "whole", **scored(*SCORES))
    run(tmp_path / "cut", **scored(*SCORES), early_stop_patience=3)
    assert read_stats(tmp_path / "cut", "train") == read_stats(tmp_path / "whole", "train")[:6]


def test_the_last_epoch_has_its_checkpoint_and_the_tables_miss_no_epoch(tmp_path: Path) -> None:
    record = run(tmp_path, **scored(*SCORES), early_stop_patience=3, ckpt_period=100)
    assert last_checkpoint(tmp_path)["epoch"] == 5
    assert list(read_finished(tmp_path, record)["train"]) == list(range(6))


def test_a_run_that_is_resumed_where_it_ended_trains_no_further(tmp_path: Path) -> None:
    ended = run(tmp_path, **scored(*SCORES), early_stop_patience=3)
    again = run(tmp_path, **scored(*SCORES), early_stop_patience=3, auto_resume=True)
    assert epochs(tmp_path, "train") == list(range(6))
    assert (again["best"], again["epochs"]) == (ended["best"], 6)


def test_without_validation_it_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train\.early_stop_patience needs a validation split"):
        run(tmp_path, loaders=make_loaders()[:1], early_stop_patience=3)
    assert not (tmp_path / "train").exists()


def test_a_patience_below_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train\.early_stop_patience is -1; allowed is a whole number of at least 0"):
        run(tmp_path, early_stop_patience=-1)
