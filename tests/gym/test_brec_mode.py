"""Train mode brec: results in the run folder, the table, resumption, pairs by name, and mistakes in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import main
from graphgps_kmip.data.sets.brec import NUM_PAIRS
from graphgps_kmip.gym import train_modes
from tests.data.sets.brec_pairs import brec_pairs
from tests.gym.earlier import kill

GIN = str(Path(__file__).parents[2] / "configs/BREC/gin.yaml")
SMALL = ["gnn.dim_inner", "8", "gnn.layers_mp", "2", "optim.max_epoch", "2", "num_threads", "1"]


def run(out: Path, *argv: str) -> int:
    return main.run(["--cfg", GIN, "out_dir", str(out / "results"), *SMALL, *argv])


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "BREC/raw").mkdir(parents=True)
    five = brec_pairs().texts  # published pairs, repeated in place of all 400
    half = len(five) // 2
    texts = [*five[:half] * (NUM_PAIRS // 5), *five[half:] * (NUM_PAIRS // 5)]
    np.save(folder / "BREC/raw/brec_v3.npy", np.array(texts))
    return folder


def test_a_run_writes_results_of_each_pair_and_the_table_and_goes_on_where_it_was(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("dataset.dir", str(data_dir), "brec.pairs", "0-1+110+260-262", "brec.protocol", "untrained")
    assert run(tmp_path, *argv) == 0
    said = capsys.readouterr().out
    assert "0 of 6 tested pairs are distinguished (0.0 %)" in said
    assert "should be" not in said  # that some pairs are not all is no fault of the data
    run_dir = tmp_path / "results/gin/0"
    first, *results = lines(run_dir / "brec.jsonl")
    assert first["settings"]["protocol"] == "untrained"
    assert [result["pair"] for result in results] == [0, 1, 110, 260, 261, 262]
    (test,), record = lines(run_dir / "test/stats.json"), json.loads((run_dir / "record.json").read_text())
    counts = {name: test[name] for name in ("distinguished", "basic", "regular", "cfi", "tested", "unreliable")}
    assert counts == {"distinguished": 0, "basic": 0, "regular": 0, "cfi": 0, "tested": 6, "unreliable": 0}
    assert "extension" not in test
    assert record["finished"]
    assert record["best"]["test"]["accuracy"] == 0
    assert (tmp_path / "results/gin/agg/test/best.json").exists()
    assert run(tmp_path, *argv) == 0
    assert "finished" in capsys.readouterr().out

    whole = (run_dir / "brec.jsonl").read_bytes()
    complete_lines = whole.splitlines(keepends=True)[:-2]
    (run_dir / "brec.jsonl").write_bytes(b"".join(complete_lines) + b'{"pair": 35')  # killed here
    (run_dir / "record.json").write_text(json.dumps({**record, "finished": False}))
    assert run(tmp_path, *argv) == 0
    said = capsys.readouterr().out
    assert "the last line, which a killed run left, is removed" in said
    assert said.count(": not distinguished") == 2
    again = lines(run_dir / "brec.jsonl")
    assert [{**result, "seconds": 0} for result in again[1:]] == [{**result, "seconds": 0} for result in results]


def test_the_sample_runs_and_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "dataset.sample", "True", "num_threads", "2", "train.precision", "64-true") == 0
    assert "a made-up SAMPLE" in capsys.readouterr().out
    run_dir = tmp_path / "results-sample/gin/0"
    assert json.loads((run_dir / "record.json").read_text())["sample"]
    first, *results = lines(run_dir / "brec.jsonl")
    assert first["settings"]["precision"] == "float64"
    assert [result["epochs"] for result in results] == [2, 2]


def test_a_run_killed_between_its_statistics_and_its_record_has_one_line_of_each_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ("dataset.sample", "True", "brec.protocol", "untrained")
    with monkeypatch.context() as patched:
        patched.setattr(train_modes, "write_record", kill)
        assert run(tmp_path, *argv) == 130
    run_dir = tmp_path / "results-sample/gin/0"
    assert len(lines(run_dir / "test/stats.json")) == 1
    assert not json.loads((run_dir / "record.json").read_text())["finished"]
    assert run(tmp_path, *argv) == 0
    assert [len(lines(run_dir / split / "stats.json")) for split in ("train", "test")] == [1, 1]
    assert json.loads((run_dir / "record.json").read_text())["finished"]


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("train.precision", "bf16-mixed"), "train.precision bf16-mixed: BREC's statistic needs exact outputs"),
        (("brec.protocol", "literl"), "brec.protocol: expected one of literal, economical, untrained, got 'literl'"),
        (("brec.pairs", "cfy"), "brec.pairs: expected names, pairs or 0-9, got 'cfy'. Did you mean cfi?"),
        (("brec.pairs", "5-3", "dataset.sample", "True"), "brec.pairs: 5-3 ends before it begins: write 3-5"),
        (("brec.pairs", "400", "dataset.sample", "True"), "brec.pairs: there is no pair 400: the data has 400 pairs"),
        (("dataset.format", "sklearn", "dataset.name", "digits"), "set dataset.format BREC"),
    ],
)
def test_a_mistake_is_one_line(
    argv: tuple[str, ...], reason: str, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "dataset.dir", str(data_dir), *argv) == 2
    assert reason in capsys.readouterr().err
