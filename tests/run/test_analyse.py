"""Trained runs are loaded again and analysed; what cannot be analysed is reported in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import main
from graphgps_kmip.gym.trained import trained
from run import analyse

CONFIGS = Path(__file__).parents[2] / "configs" / "quickstart"
SMALL = ("dataset.sample", "True", "optim.max_epoch", "1", "num_workers", "0", "train.ckpt_best", "True", "seed")


def train(out: Path, config: str, *argv: str) -> Path:
    assert main.run(["--cfg", str(CONFIGS / f"{config}.yaml"), "out_dir", str(out), *SMALL, *argv]) == 0
    return Path(f"{out}-sample") / config / argv[0]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("trained") / "results", "digits-kmip", "0", "gt.layers", "2")


def analysed(*argv: Any) -> dict[str, Any]:
    assert analyse.main([*map(str, argv)]) == 0
    return json.loads(Path(argv[-1]).read_text())


def test_distances_and_weights_end_at_full_attention_and_say_where_they_are_from(run_dir: Path, tmp_path: Path) -> None:
    options = ("--run", run_dir, "--graphs", 3, "--min-nodes", 8, "--out")
    distance = analysed("distance", *options, tmp_path / "new" / "distance.json")
    cumulative = analysed("cumulative", *options, tmp_path / "cumulative.json")
    for content, end in ((distance, 0.0), (cumulative, 1.0)):
        (facts,) = content["runs"]
        assert (facts["dataset"], facts["sample"], facts["checkpoint"]) == ("digits", True, "best.ckpt")
        assert len(content["graphs"]) == len(content["nodes"]) == 3
        assert min(content["nodes"]) > 8
        assert content["num_keys"] == [5, 5]
        assert (content["k"][0], content["k"][-1]) == (1, max(content["nodes"]))
        for group in ("first", "others"):
            curve = content["groups"][group]
            assert curve["mean"][-1] == end
            assert np.shape(curve["heads"]) == (1, 4, len(content["k"]))
            np.testing.assert_allclose(np.mean(curve["heads"], axis=(0, 1)), curve["mean"], rtol=1e-4, atol=1e-9)
    assert distance["groups"]["others"]["mean"][0] > 0.01
    assert (np.diff(cumulative["groups"]["gaussian"]["mean"]) > 0).all()
    samples = distance["cells"]["distance of N(0, I) samples to full attention"]["value"]
    assert np.mean(samples) == pytest.approx(distance["reference"]["others"]["mean"], rel=1e-4)
    assert len(samples) == 3 * 4
    (half,) = cumulative["cells"]["k for attention weight 0.5"]["value"]
    assert half == analyse.crossing(cumulative["k"], cumulative["groups"]["others"]["mean"], 0.5)


def test_degrees_count_every_selection_of_every_model(run_dir: Path, tmp_path: Path) -> None:
    content = analysed("degrees", "--run", run_dir, run_dir, "--graphs", 4, "--out", tmp_path / "degrees.json")
    with trained(run_dir) as run:
        sizes = [run.dataset.part("test")[i].num_nodes for i in range(4)]
    assert content["counts"][0] == content["counts"][1]
    assert len(content["counts"][0]) == len(content["num_keys"]) == 2
    for counts in content["counts"][0]:
        assert sum(counts) == 4 * sum(sizes)  # heads
        assert sum(degree * nodes for degree, nodes in enumerate(counts)) == 4 * sum(n * min(5, n) for n in sizes)


def said(capsys: pytest.CaptureFixture[str], *argv: Any) -> str:
    capsys.readouterr()
    assert analyse.main([*map(str, argv)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_is_no_analysable_run_is_told_in_one_line(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--out", tmp_path / "out.json")
    assert "0 of the " in said(capsys, "distance", "--run", run_dir, "--min-nodes", 10**6, *out)
    assert "no finished run is there" in said(capsys, "degrees", "--run", run_dir.parent, *out)
    copy = Path(shutil.copytree(run_dir, tmp_path / "copy"))
    shutil.rmtree(copy / "ckpt")
    assert "train.ckpt_best True" in said(capsys, "cumulative", "--run", copy, *out)
    assert not out[1].exists()


@pytest.mark.slow  # a second training
def test_other_models_than_kmip_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = train(tmp_path / "results", "digits-gcn", "0")
    line = said(capsys, "degrees", "--run", other, "--graphs", 1, "--out", tmp_path / "out.json")
    assert "no k-MIP attention" in line
