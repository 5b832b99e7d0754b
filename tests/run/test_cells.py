"""Commands that fill cells of tables: BREC, data sets, narrow estimators; and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from graphgps_kmip.data.score_file import AttentionScores, LayerScores, read_scores, write_scores
from graphgps_kmip.data.sets.brec import CATEGORIES, NUM_PAIRS
from graphgps_kmip.encoding.expander_graph import spectral_bound
from run import brec, dataset_table, expander_gaps, narrow_estimators

Capture, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch


def run_folder(folder: Path, pairs: dict[int, bool], **record: object) -> Path:
    """Write a finished run that has tested some pairs: pair -> distinguished; the first one is not reliable."""
    folder.mkdir(parents=True)
    lines = [{"settings": {}}, *({"pair": pair, "distinguished": separated} for pair, separated in pairs.items())]
    lines[1]["reliable"] = False
    (folder / brec.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "record.json").write_text(json.dumps({"finished": True} | record))
    return folder


def cells(path: Path) -> dict[str, dict[str, list[float]]]:
    return json.loads(path.read_text())["cells"]


def test_a_run_is_counted_by_category_and_one_of_some_pairs_has_whole_categories_only(tmp_path: Path) -> None:
    every = run_folder(tmp_path / "a", {pair: pair < 60 or pair in (70, 390, 300) for pair in range(NUM_PAIRS)})
    some = run_folder(tmp_path / "b", {pair: pair % 2 == 0 for pair in (*range(260, 360), 1, 2)})
    out = tmp_path / "cells.json"
    assert brec.main(["--rows", f"S=3={every}", f"some={some}", "--out", str(out)]) == 0
    assert cells(out) == {
        "S=3": {"Basic": [60], "Regular": [2], "Extension": [0], "CFI": [1], "Total": [63], "BREC": [15.75]},
        "some": {"CFI": [50]},
    }
    argv = ["--columns", "CFI", "unreliable", "--rows", f"some={some}", "--out", str(out)]
    assert brec.main(argv) == 0
    assert cells(out) == {"some": {"CFI": [50], "unreliable": [1]}}


def test_colour_refinements_are_rows_too(tmp_path: Path) -> None:
    tests = {
        name: {"separated_after": {str(pair): 2 if pair in separated else None for pair in range(NUM_PAIRS)}}
        for name, separated in (("1-WL", ()), ("3-WL", CATEGORIES["extension"]))
    }
    path, out = tmp_path / "brec_wl.json", tmp_path / "cells.json"
    path.write_text(json.dumps({"sample": False, "pairs": "all", "tests": tests}))
    assert brec.main(["--wl", str(path), "--out", str(out)]) == 0
    assert cells(out)["1-WL"]["Total"] == [0]
    assert (cells(out)["3-WL"]["Extension"], cells(out)["3-WL"]["BREC"]) == ([100], [25])


def test_samples_results_and_unfinished_runs_are_not_mixed(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "cells.json"
    sample, run = run_folder(tmp_path / "a", {0: True}, sample=True), run_folder(tmp_path / "b", {0: True})
    for argv, line in (
        ([f"x={sample}"], "holds a sample: give --sample, or name another folder"),
        ([f"x={run}", "--sample"], "holds a result: leave --sample out, or name another folder"),
        ([f"x={tmp_path}"], "holds no finished run: run train.mode brec there first"),
    ):
        assert brec.main(["--rows", *argv, "--out", str(out)]) == 2
        assert capsys.readouterr().err.strip().endswith(line)
    assert not out.exists()
    with pytest.raises(SystemExit):
        brec.main(["--rows", "x", "--out", str(out)])
    assert "expected NAME=FOLDER, got 'x'" in capsys.readouterr().err


def test_a_data_set_is_counted_and_one_without_files_left_out_with_a_line(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "deep" / "cells.json"
    argv = ["--datasets", "scans=digits", "CIFAR10", "--out", str(out), "--dir", str(tmp_path / "none")]
    assert dataset_table.main(argv) == 0
    numbers = {"graphs": 1797, "nodes": 32.69, "edges": 261.48, "outputs": 10}
    assert cells(out) == {"scans": {name: [pytest.approx(number, abs=0.005)] for name, number in numbers.items()}}
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "digits: graphs 1,797, nodes 32.69, edges 261.48, outputs 10"
    assert printed[1].startswith("CIFAR10: left out, it has no files in ")


def test_nothing_to_count_ends_with_one_line_and_writes_no_file(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "cells.json"
    for names, line in (
        (["CIFAR10"], "error: none of these data sets has files in"),
        (["CIFAR11"], "error: --datasets: unknown 'CIFAR11'. Did you mean CIFAR10"),
    ):
        assert dataset_table.main(["--datasets", *names, "--out", str(out), "--dir", str(tmp_path)]) == 2
        assert capsys.readouterr().err.startswith(line)
    assert not out.exists()


CONFIG = Path(__file__).parents[2] / "configs" / "LowWidth" / "minesweeper-estimator.yaml"
PTR = torch.tensor([0, 2, 2, 5, 6])  # the second node has no edge
SOURCE = torch.tensor([1, 2, 0, 1, 3, 0], dtype=torch.int32)
FACTS = {"data": "d", "split": "s", "settings": "x", "epoch": 3, "num_nodes": 4, "kinds": "graph, expander, self loop"}


def write_example(path: Path, seed: int, layers: int = 2, **facts: str) -> Path:
    """A score file with random weights, those of the second layer others than those of the first."""
    kind = torch.zeros(6, dtype=torch.uint8)
    drawn = narrow_estimators.random_weights(PTR, layers, seed).float()
    path.parent.mkdir(parents=True, exist_ok=True)
    made = [LayerScores(PTR, SOURCE, kind, score.contiguous()) for score in drawn]
    write_scores(path, AttentionScores(made, FACTS | {"seed": seed} | facts))
    return path


@pytest.fixture
def trainings(monkeypatch: Patch) -> list[list[str]]:
    lines: list[list[str]] = []

    def train(argv: list[str]) -> int:
        lines.append(argv)
        settings = dict(zip(argv[::2], argv[1::2], strict=True))
        folder = Path(settings["out_dir"]) / f"minesweeper-estimator-{settings['name_tag']}"
        width = int(settings["gt.dim_hidden"])
        for seed in range(int(settings["--repeat"])):
            write_example(folder / str(seed) / "scores.pt", seed + 100 * width)
        return 0

    monkeypatch.setattr(narrow_estimators, "train", train)
    return lines


def compared(out: Path, *argv: str) -> dict:
    options = ["--cfg", str(CONFIG), "--widths", "8", "4", "--seeds", "4", "--out", str(out)]
    assert narrow_estimators.main([*options, *argv]) == 0
    return json.loads((out / "energy.json").read_text())


@pytest.mark.usefixtures("trainings")
def test_each_width_has_the_distances_of_its_score_files_by_layer(tmp_path: Path) -> None:
    content = compared(tmp_path)
    assert (content["reference"], content["seeds"], content["sample"]) == (8, 4, False)
    assert content["edges"].keys() == {"all", "graph"}
    folder = tmp_path / "all" / "minesweeper-estimator-width"
    scores = {w: [read_scores(f"{folder}{w}/{seed}/scores.pt") for seed in range(4)] for w in (4, 8)}
    distances = content["edges"]["all"]["distances"]
    for layer in (0, 1):
        x, y = (torch.stack([run.layers[layer].score for run in scores[w]]) for w in (4, 8))
        edged = [0, 2, 3]
        expected = narrow_estimators.energy_distances(x, y, PTR)[edged].mean().item()
        assert distances["4"][layer] == pytest.approx(expected, abs=1e-12)
        halves = narrow_estimators.energy_distances(y[:2], y[2:], PTR)[edged].mean().item()
        assert distances["8"][layer] == pytest.approx(halves, abs=1e-12)
        uniform = (
            narrow_estimators.energy_distances_of_point(narrow_estimators.uniform_weights(PTR), y, PTR)[edged]
            .mean()
            .item()
        )
        assert distances["uniform"][layer] == pytest.approx(uniform, abs=1e-12)
    assert content["edges"]["all"]["nodes"] == 3
    assert content["cells"]["width 4"]["all"] == [pytest.approx(sum(distances["4"]) / 2)]
    assert content["cells"].keys() == {"width 4", "width 8", "uniform", "random"}


def test_all_trainings_have_one_expander(trainings: list[list[str]], tmp_path: Path) -> None:
    compared(tmp_path, "--set", "optim.max_epoch 7")
    runs = [dict(zip(argv[::2], argv[1::2], strict=True)) for argv in trainings]
    kinds = [(run["gt.dim_hidden"], run.get("prep.exp")) for run in runs]
    assert kinds == [("4", None), ("8", None), ("4", "False"), ("8", "False")]
    assert {(run["prep.exp_seed"], run["seed"], run["optim.max_epoch"]) for run in runs} == {("0", "0", "7")}
    assert runs[2]["gt.score_estimator.self_loops"] == "False"


@pytest.mark.usefixtures("trainings")
def test_scores_of_other_data_are_refused_in_one_line(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    compared(tmp_path)
    monkeypatch.setattr(narrow_estimators, "train", lambda _: 0)  # all is done
    other = write_example(tmp_path / "all" / "minesweeper-estimator-width4" / "2" / "scores.pt", 0, data="other")
    capsys.readouterr()
    argv = ["--cfg", str(CONFIG), "--widths", "8", "4", "--seeds", "4", "--out", str(tmp_path)]
    assert narrow_estimators.main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{other}: its data, split or edges are not those of the other runs" in line


def test_expanders_are_drawn_until_one_passes(tmp_path: Path) -> None:
    out = tmp_path / "cells.json"
    assert expander_gaps.main(["--nodes", "60", "--degree", "2", "--seeds", "3", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["cells"].values()
    assert row["bound"] == [spectral_bound(2)] * 3
    for value, draws in zip(row["eigenvalue"], row["draws"], strict=True):
        assert value >= spectral_bound(2) or draws == expander_gaps.MAX_DRAWS
