"""The table of several experiments: arithmetic, what differs, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from scipy import stats

from graphgps_kmip.report.comparison import comparison
from graphgps_kmip.report.welch import corrected_t, difference_text


def experiment(
    folder: Path, scores: list[float], config: dict, metric: str = "accuracy", finished: bool = True
) -> Path:
    for seed, score in enumerate(scores):
        run = folder / str(seed)
        run.mkdir(parents=True)
        (run / "config.yaml").write_text(yaml.safe_dump(config | {"seed": seed, "out_dir": str(folder)}))
        record = {"finished": finished, "metric_best": metric, "params": 1234, "seconds_per_epoch": seed + 1.0}
        (run / "record.json").write_text(json.dumps(record | {"best": {"test": {metric: score}}}))
    return folder


def test_mean_sample_deviation_and_differing_settings_are_shown(tmp_path: Path) -> None:
    old = experiment(tmp_path / "old", [0.5, 0.7], {"gt": {"layers": 2, "kmip": {"k": 5}}})
    new = experiment(tmp_path / "new", [0.9, 0.9], {"gt": {"layers": 3, "kmip": {"k": 5}, "mine": {"a": 1}}})
    text = comparison([old, new], 2)
    assert "gt.layers: 2 | 3" in text
    assert "kmip" not in text
    assert "mine" not in text
    assert "seed" not in text
    rows = {line.split()[0]: line for line in text.splitlines() if line}
    assert "0.6000 ± 0.1414" in rows["old"]
    assert "0.9000 ± 0.0000" in rows["new"]
    assert rows["old"].split()[-3:] == ["2", "1,234", "1.50"]
    same = experiment(tmp_path / "same", [0.5], {"gt": {"layers": 2, "kmip": {"k": 5}}})
    assert "  nothing" in comparison([old, same], 1)


def test_each_other_experiment_has_its_difference_to_the_first_with_the_interval_of_welch(tmp_path: Path) -> None:
    old, new, short = (0.5, 0.7, 0.6), (0.9, 0.8, 0.7), (0.5,)
    folders = [experiment(tmp_path / name, list(values), {}) for name, values in (("old", old), ("new", new))]
    expected = stats.ttest_ind(new, old, equal_var=False).confidence_interval(0.95)
    lines = comparison(folders, 3).splitlines()
    assert lines[-3].endswith(f"+0.2000 [{expected.low:+.4f}, {expected.high:+.4f}]")
    assert lines[-1] == "difference: to old, with the 95 % interval of Welch's t"
    folders.append(experiment(tmp_path / "short", list(short), {}))
    assert "difference" not in comparison(folders, 1)


def test_runs_over_splits_are_compared_by_the_corrected_resampled_t(tmp_path: Path) -> None:
    old, new = (0.5, 0.7, 0.6), (0.6, 0.75, 0.8)
    folders = [experiment(tmp_path / name, list(values), {}) for name, values in (("old", old), ("new", new))]
    for file in tmp_path.glob("*/*/config.yaml"):
        data = {"format": "PyG-Heterophilous", "name": "Minesweeper", "split_index": int(file.parent.name)}
        file.write_text(yaml.safe_dump({"dataset": data}))
    expected = corrected_t([second - first for first, second in zip(old, new, strict=True)], 0.5)
    text = comparison(folders, 3)
    assert f"{difference_text(expected, 4)}\n\ndifference: to old, with the 95 % interval of the corrected" in text


def test_missing_runs_and_other_metrics_are_refused(tmp_path: Path) -> None:
    old = experiment(tmp_path / "old", [0.5, 0.6], {})
    with pytest.raises(ValueError, match="2 finished runs, 3 are wanted"):
        comparison([old], 3)
    with pytest.raises(ValueError, match="0 finished runs"):
        comparison([experiment(tmp_path / "cut", [0.5], {}, finished=False)], 1)
    record = tmp_path / "old" / "1" / "record.json"
    other = json.loads(record.read_text()) | {"experiment": "another"}
    record.write_text(json.dumps(other))
    with pytest.raises(ValueError, match="different settings"):
        comparison([old], 2)
    record.unlink()
    with pytest.raises(ValueError, match="different metrics"):
        comparison([old, experiment(tmp_path / "other", [0.5], {}, metric="f1")], 1)
