"""The agg/ summary: means and spreads at each run's best epoch, whatever state the runs were left in."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest

from graphgps_kmip.report.aggregate import aggregate

NAN = float("nan")
# run -> split -> accuracy by epoch; the loss is 1 - accuracy / 2, so that both choose the same epoch
RUNS = {
    "0": {"train": [0.5, 0.8, 0.9], "val": [0.4, 0.7, 0.6], "test": [0.41, 0.66, 0.71]},
    "1": {"train": [0.6, 0.7, 0.8], "val": [0.5, 0.5, 0.5], "test": [0.52, 0.53, 0.54]},
    "12": {"train": [0.4, 0.6], "val": [0.3, 0.9], "test": [0.31, 0.86]},
}


def write(out_dir: Path, run: str, splits: dict[str, list[float]], finished: bool = True) -> Path:
    for split, values in splits.items():
        lines = [
            {"epoch": epoch, "time_epoch": 1.5, "loss": 1 - value / 2, "params": 7, "accuracy": value, "tag": "x"}
            for epoch, value in enumerate(values)
        ]
        path = out_dir / run / split / "stats.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (out_dir / run / "record.json").write_text(json.dumps({"finished": finished}))
    return out_dir / run


@pytest.fixture
def out_dir(tmp_path: Path) -> Path:
    for run, splits in RUNS.items():
        write(tmp_path, run, splits)
    return tmp_path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def accuracy(out_dir: Path, split: str, *how: str) -> float:
    aggregate(out_dir, *how)
    return read(out_dir / "agg" / split / "best.json")[0]["accuracy"]


@pytest.mark.parametrize("rule", [("auto", "argmax"), ("loss", "argmax"), ("accuracy", "argmax")])
def test_best_holds_mean_and_deviations_at_each_best_epoch(out_dir: Path, rule: tuple[str, str]) -> None:
    aggregate(out_dir, *rule)
    for split, at_best in (("train", [0.8, 0.6, 0.6]), ("val", [0.7, 0.5, 0.9]), ("test", [0.66, 0.52, 0.86])):
        (line,) = read(out_dir / "agg" / split / "best.json")
        assert (line["accuracy"], line["accuracy_std"]) == pytest.approx((np.mean(at_best), np.std(at_best)))
        assert (line["epoch"], line["runs"], line["params"], line["params_std"]) == pytest.approx((2 / 3, 3, 7, 0))
        assert line["accuracy_sample_std"] == pytest.approx(np.std(at_best, ddof=1))
        assert "tag" not in line


def test_stats_has_one_line_per_epoch_over_the_runs_that_reached_it(out_dir: Path) -> None:
    aggregate(out_dir)
    lines = read(out_dir / "agg" / "train" / "stats.json")
    assert [(line["epoch"], line["runs"]) for line in lines] == [(0, 3), (1, 3), (2, 2)]
    assert [line["accuracy"] for line in lines] == pytest.approx([0.5, 0.7, 0.85])
    assert accuracy(out_dir, "val", "accuracy", "argmin") == pytest.approx(np.mean([0.4, 0.5, 0.3]))


def test_unfinished_runs_and_other_folders_are_left_out_and_named(
    out_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(out_dir, "2", RUNS["0"], finished=False)
    write(out_dir, "3", RUNS["0"])
    (out_dir / "3" / "record.json").unlink()
    write(out_dir, "4", RUNS["0"])
    (out_dir / "4" / "record.json").write_text('{"finished": tr')
    write(out_dir, "0.old-1", RUNS["12"])
    with caplog.at_level(logging.INFO):
        aggregate(out_dir)
    assert "runs 2, 3, 4 are unfinished" in caplog.text
    assert "test at the best epoch, n = 3: loss 0.66 ± 0.085, accuracy 0.68 ± 0.17 (mean ± sample" in caplog.text


def test_a_split_that_was_evaluated_at_new_bests_only_is_read_by_epoch(out_dir: Path) -> None:
    path = out_dir / "0" / "test" / "stats.json"
    path.write_text(path.read_text().split("\n", 1)[1])
    assert accuracy(out_dir, "test") == pytest.approx(np.mean([0.66, 0.52, 0.86]))


def test_without_a_validation_split_the_last_epoch_counts(tmp_path: Path) -> None:
    write(tmp_path, "0", {"train": [0.5, 0.9, 0.8], "test": [0.4, 0.3, 0.2]})
    assert (accuracy(tmp_path, "train"), accuracy(tmp_path, "test")) == (0.8, 0.2)
    assert not (tmp_path / "agg" / "val").exists()


def test_a_nan_metric_stays_visible_in_the_summary(tmp_path: Path) -> None:
    write(tmp_path, "0", {"train": [0.5], "val": [NAN]})
    assert math.isnan(accuracy(tmp_path, "val"))


def test_unknown_metrics_and_no_runs_are_refused(out_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(ValueError, match=r"no 'acuracy'\. Did you mean accuracy"):
        aggregate(out_dir, "acuracy")
    assert not (out_dir / "agg").exists()
    unfinished = tmp_path_factory.mktemp("unfinished")
    write(unfinished, "5", RUNS["0"], finished=False)
    with pytest.raises(ValueError, match="No finished run .* unfinished: 5"):
        aggregate(unfinished)
    assert [path.name for path in unfinished.iterdir()] == ["5"]
