"""Trained runs are loaded again and analysed; what cannot be analysed is told in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import main
from graphgps_kmip.analysis import crossing, kmip_layers
from graphgps_kmip.gym.trained import trained
from run import analyse

CONFIGS = Path(__file__).parents[2] / "configs" / "quickstart"
SMALL = ("dataset.sample", "True", "optim.max_epoch", "1", "num_workers", "0", "train.ckpt_best", "True", "seed")


def train(out: Path, config: str, *words: str) -> Path:
    assert main.run(["--cfg", str(CONFIGS / f"{config}.yaml"), "out_dir", str(out), *SMALL, *words]) == 0
    return Path(f"{out}-sample") / config / words[0]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of GPS+kMIP, on samples of the digits."""
    return train(tmp_path_factory.mktemp("trained") / "results", "digits-kmip", "0", "gt.layers", "2")


def analysed(*words: Any) -> dict[str, Any]:
    """What a command writes."""
    assert analyse.main([*map(str, words)]) == 0
    return json.loads(Path(words[-1]).read_text())


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
    assert half == crossing(cumulative["k"], cumulative["groups"]["others"]["mean"], 0.5)


def test_the_public_order_has_distances_of_its_own_for_the_same_groups(run_dir: Path, tmp_path: Path) -> None:
    words = ("distance", "--run", run_dir, "--graphs", 2, "--out", tmp_path / "distance.json")
    plain = analysed(*words)
    both = analysed("distance", "--public-order", *words[1:])
    assert "public_order" not in plain
    assert both["groups"] == plain["groups"]
    assert list(both["public_order"]) == list(both["groups"]) == ["first", "others", "gaussian"]
    for name, group in both["public_order"].items():
        assert group["mean"][-1] == 0
        assert group["mean"][5] > both["groups"][name]["mean"][5]
        assert np.shape(group["heads"])[-1] == len(both["k"])


def test_the_model_is_that_of_the_best_epoch(run_dir: Path) -> None:
    saved = torch.load(run_dir / "ckpt" / "best.ckpt", weights_only=True)
    with trained(run_dir) as run:
        assert run.facts["epoch"] == saved["epoch"]
        assert not run.model.training
        torch.testing.assert_close(dict(run.model.state_dict()), dict(saved["model_state"]), atol=0, rtol=0)


def test_degrees_count_every_selection_of_every_model(run_dir: Path, tmp_path: Path) -> None:
    content = analysed("degrees", "--run", run_dir, run_dir, "--graphs", 4, "--out", tmp_path / "degrees.json")
    with trained(run_dir) as run:
        sizes = [run.dataset.part("test")[i].num_nodes for i in range(4)]
    assert content["counts"][0] == content["counts"][1]
    assert len(content["counts"][0]) == len(content["num_keys"]) == 2
    for counts in content["counts"][0]:
        assert sum(counts) == 4 * sum(sizes)  # heads
        assert sum(degree * nodes for degree, nodes in enumerate(counts)) == 4 * sum(n * min(5, n) for n in sizes)


def test_each_graph_has_a_file_of_its_own(run_dir: Path, tmp_path: Path) -> None:
    assert analyse.main(["graphs", "--run", str(run_dir), "--graphs", "2", "--out", str(tmp_path / "out")]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["graph-1.npz", "graph-2.npz"]
    with trained(run_dir) as run, np.load(tmp_path / "out" / "graph-2.npz") as file:
        graph = run.dataset.part("test")[1]
        np.testing.assert_array_equal(file["pos"], graph.pos)
        assert file["index_1"].shape == (4, graph.num_nodes, 5)


def said(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    """The one line of a command that fails."""
    capsys.readouterr()
    assert analyse.main([*map(str, words)]) == 2
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


def test_without_the_best_checkpoint_the_newest_is_taken_and_said(
    run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = Path(shutil.copytree(run_dir, tmp_path / "copy"))
    (copy / "ckpt" / "best.ckpt").unlink()
    with trained(copy) as run:
        assert run.facts["checkpoint"] == "0.ckpt"
    assert "there is no best.ckpt, taken is 0.ckpt" in caplog.text


def changed(run_dir: Path, folder: Path, setting: str, value: str) -> Path:
    """A copy of the run with another setting, which leaves the shapes of its parameters as they are."""
    copy = Path(shutil.copytree(run_dir, folder / setting))
    text = (copy / "config.yaml").read_text()
    lines = [f"    {setting}: {value}" if line.startswith(f"    {setting}: ") else line for line in text.splitlines()]
    assert (after := "\n".join(lines) + "\n") != text
    (copy / "config.yaml").write_text(after)
    return copy


def test_keys_that_are_not_those_of_kmip_are_refused(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = changed(run_dir, tmp_path, "diversity", "0.5")
    line = said(capsys, "distance", "--run", other, "--graphs", 1, "--out", tmp_path / "out.json")
    assert "with diversity its layers choose other keys" in line


def test_models_with_different_numbers_of_keys_are_not_pooled(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = changed(run_dir, tmp_path, "k", "3")
    line = said(capsys, "degrees", "--run", run_dir, other, "--graphs", 1, "--out", tmp_path / "out.json")
    assert "different numbers of keys" in line


def test_degrees_of_other_attention_are_not_counted_with_those_of_kmip(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analyse.analysis, "kmip_layers", lambda model: kmip_layers(model)[:1])  # the other is not one
    line = said(capsys, "degrees", "--run", run_dir, "--graphs", 1, "--out", tmp_path / "out.json")
    assert "other attention beside k-MIP" in line


@pytest.mark.slow  # a second training
def test_other_models_than_kmip_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = train(tmp_path / "results", "digits-gcn", "0")
    line = said(capsys, "degrees", "--run", other, "--graphs", 1, "--out", tmp_path / "out.json")
    assert "no k-MIP attention" in line
