"""The command line of the expressiveness experiments, its artefacts and their figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from run import expressivity
from tests.data.sets.brec_pairs import brec_pairs
from tests.data.sets.raw_files import offline
from tests.experiments.repository import EXPERIMENTS

Capture, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch
ROOT = Path(__file__).parents[2]
PARTS = ("pairs", "theorem1", "hardmax", "fit")


def sample(part: str, out: Path) -> list[str]:
    commands = (row for experiment in EXPERIMENTS.values() for row in experiment.commands.values() if row.name == part)
    command = next(row for row in commands if row.run.startswith("run/expressivity.py"))
    return command.sample.format(out=out).split()[1:]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("expressivity")
    for part in PARTS:
        assert expressivity.main(sample(part, folder)) == 0
    return folder


def read(out: Path, name: str) -> dict:
    return json.loads((out / name).read_text())


def test_pairs_tell_rounds_and_what_is_no_invariant(out: Path) -> None:
    rows = {row["name"]: row["tests"] for row in read(out, "pairs.json")["pairs"]}
    hexagon = {name: test["separated_after"] for name, test in rows["hexagon, two triangles"].items()}
    assert hexagon["1-WL"] is hexagon["SEG-WL, none"] is None
    assert hexagon["SEG-WL, Laplacian eigenvalues"] == 0
    assert rows["trees of equal degrees"]["1-WL"]["separated_after"] == 2
    for row in read(out, "pairs.json")["pairs"]:
        if row["isomorphic"]:
            assert all(test["separated_after"] is None for test in row["tests"].values() if test["invariant"])


def test_theorem1_says_what_was_seen_of_every_component(out: Path) -> None:
    content = read(out, "theorem1.json")
    assert content["holds"] is True
    for row in content["rows"]:
        assert ("trials" in row) == row["inside"]
        assert ("counterexample" in row) == (not (row["inside"] and row["per_round"]))


def test_theorem1_fails_loudly_where_the_theorem_does(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    wrong = replace(expressivity.REACH["BigBird"], inside=True)
    monkeypatch.setattr(expressivity, "REACH", {"BigBird": wrong, "GINE": expressivity.REACH["GINE"]})
    assert expressivity.main(["theorem1", "--trials", "6", "--out", str(tmp_path)]) == 1
    assert "WAS NOT SEEN for BigBird." in capsys.readouterr().out
    assert read(tmp_path, "theorem1.json")["holds"] is False


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["theorem1", "--trials", "0"], "--trials: got 0, at least 1 is needed"),
        (["fit", "--blocks", "2", "-1"], "--blocks: got"),
        (["fit", "--target", "nothing"], "invalid choice"),
        (["nothing"], "invalid choice"),
    ],
)
def test_wrong_arguments_end_with_one_line_and_exit_code_2(argv: list[str], message: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        expressivity.main(argv)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_brec_counts_the_pairs_that_1wl_and_3wl_tell_apart(tmp_path: Path, capsys: Capture) -> None:
    raw = tmp_path / "BREC/raw"
    raw.mkdir(parents=True)
    five = brec_pairs().texts  # in place of all: every fifth pair is the strongly regular one that 3-WL leaves equal
    half = len(five) // 2
    np.save(raw / "brec_v3.npy", np.array([*five[:half] * 80, *five[half:] * 80]))
    assert expressivity.main(["brec", "--data", str(tmp_path), "--pairs", "0-9+110", "--out", str(tmp_path)]) == 0
    tests = read(tmp_path, "brec_wl.json")["tests"]
    assert tests["1-WL"]["distinguished"] == {"basic": 0, "regular": 0, "extension": 0, "cfi": 0, "total": 0}
    assert tests["3-WL"]["distinguished"] == {"basic": 8, "regular": 1, "extension": 0, "cfi": 0, "total": 9}
    assert tests["3-WL"]["tested"]["total"] == 11
    assert [pair for pair, after in tests["3-WL"]["separated_after"].items() if after is None] == ["2", "7"]
    assert "9 of 11 tested pairs are distinguished" in capsys.readouterr().out


def test_brec_without_its_data_is_one_line_and_its_sample_is_marked(tmp_path: Path, capsys: Capture) -> None:
    with offline():
        assert expressivity.main(["brec", "--data", str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    assert "BREC: raw files are missing" in capsys.readouterr().err
    assert expressivity.main(["brec", "--sample", "--out", str(tmp_path)]) == 0
    assert "SAMPLE" in capsys.readouterr().out
    assert read(tmp_path, "brec_wl.json")["sample"]
