"""The command line of the expressiveness experiments, its artefacts and their figures."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from matplotlib.figure import Figure

from graphgps_kmip.experiments.manifest import load_manifest
from graphgps_kmip.report.figures.expressivity_figures import draw_hardmax, draw_iteration, draw_pair, draw_toy_fit
from run import expressivity
from tests.data.sets.brec_pairs import brec_pairs
from tests.data.sets.raw_files import offline

ROOT = Path(__file__).parents[2]
PARTS = ("pairs", "theorem1", "hardmax", "fit")


def sample(part: str, out: Path) -> list[str]:
    """The words of the sample form in the manifest."""
    experiments = load_manifest(ROOT / "run/experiments").values()
    commands = [command for one in experiments for command in one.commands.values() if command.name == part]
    found = next(command for command in commands if command.run.startswith("run/expressivity.py"))
    return found.sample.format(out=out).split()[1:]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("expressivity")
    for part in PARTS:
        assert expressivity.main(sample(part, folder)) == 0
    return folder


def read(out: Path, name: str) -> dict:
    return json.loads((out / name).read_text())


def test_the_manifest_has_the_four_experiments_and_their_files(out: Path) -> None:
    experiments = load_manifest(ROOT / "run/experiments")
    chosen = [experiments[name] for name in ("T-5.1", "T-5.2", "K-4.1", "K-4.2")]
    assert [one.number for one in chosen] == [15, 16, 25, 26]
    for one in chosen:
        for command in one.commands.values():
            assert all((out / name).exists() for name in command.produces)
        sources = {source.split("/")[0] for figure in one.figures.values() for source in figure.sources}
        assert sources <= one.commands.keys()


def test_pairs_tell_rounds_and_what_is_no_invariant(out: Path) -> None:
    rows = {row["name"]: row["tests"] for row in read(out, "pairs.json")["pairs"]}
    hexagon = {name: one["separated_after"] for name, one in rows["hexagon, two triangles"].items()}
    assert hexagon["1-WL"] is hexagon["SEG-WL, none"] is None
    assert hexagon["SEG-WL, Laplacian eigenvalues"] == 0
    assert rows["trees of equal degrees"]["1-WL"]["separated_after"] == 2
    for row in read(out, "pairs.json")["pairs"]:
        if row["isomorphic"]:
            assert all(one["separated_after"] is None for one in row["tests"].values() if one["invariant"])


def test_the_drawn_pair_has_equal_colours_by_1wl_only(out: Path) -> None:
    found = read(out, "colourings.json")["pair"]
    first, *others = found["tests"]
    assert first["test"] == "1-WL"
    assert Counter(first["colours"][0]) == Counter(first["colours"][1])
    for test in others:
        assert Counter(test["colours"][0]) != Counter(test["colours"][1])


def test_the_drawn_round_gives_one_colour_to_each_signature(out: Path) -> None:
    found = read(out, "colourings.json")["iteration"]
    both = set(zip(found["after"], found["signatures"], strict=True))
    assert len(both) == len(set(found["after"])) == len(set(found["signatures"])) > len(set(found["before"]))


def test_theorem1_says_what_was_seen_of_every_component(out: Path) -> None:
    found = read(out, "theorem1.json")
    assert found["holds"] is True
    for row in found["rows"]:
        assert ("trials" in row) == row["inside"]
        assert ("counterexample" in row) == (not (row["inside"] and row["per_round"]))


def test_theorem1_fails_loudly_where_the_theorem_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = expressivity.REACH["BigBird"]
    wrong = type(one)(True, one.why)
    monkeypatch.setattr(expressivity, "REACH", {"BigBird": wrong, "GINE": expressivity.REACH["GINE"]})
    assert expressivity.main(["theorem1", "--trials", "6", "--out", str(tmp_path)]) == 1
    assert "WAS NOT SEEN for BigBird." in capsys.readouterr().out
    assert read(tmp_path, "theorem1.json")["holds"] is False


def test_theorem1_names_the_components_that_had_no_pair_to_be_seen_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {name: expressivity.REACH[name] for name in ("GINE", "GIN", "BigBird")}
    monkeypatch.setattr(expressivity, "REACH", kept)
    seen = expressivity.trial
    monkeypatch.setattr(
        expressivity,
        "trial",
        lambda name, seed: dataclasses.replace(seen(name, seed), equal=name == "GIN"),
    )
    assert expressivity.main(["theorem1", "--trials", "1", "--out", str(tmp_path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "was seen for 2 of 3 components" in last
    assert "promises nothing (GINE): " in last
    assert "--trials" in last
    assert read(tmp_path, "theorem1.json")["untried"] == ["GINE"]
    assert read(tmp_path, "theorem1.json")["rows"][0]["readout_error"] is None


def test_theorem1_claims_every_component_only_where_each_had_a_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expressivity.main(["theorem1", "--trials", "3", "--out", str(tmp_path)]) == 0
    found = read(tmp_path, "theorem1.json")
    without = [row["name"] for row in found["rows"] if row["inside"] and row["equal"] == 0]
    assert without  # three random pairs are not enough for all
    assert found["untried"] == without
    assert "for every component" not in capsys.readouterr().out


def test_hardmax_errors_stay_below_their_bounds_and_fall(out: Path) -> None:
    found = read(out, "hardmax.json")
    for row in found["rows"]:
        assert all(error <= bound + 1e-12 for error, bound in zip(row["error"], row["bound"], strict=True))
        reached = row["error"][-1] < 1e-12
        assert reached == (row["k"] >= row["maxima"])


def test_fit_holds_one_error_for_each_seed_and_number_of_blocks(out: Path) -> None:
    found = read(out, "fit.json")
    assert [(row["k"], row["blocks"], len(row["error"])) for row in found["rows"]] == [
        (2, 1, 2),
        (2, 2, 2),
        (0, 1, 2),
        (0, 2, 2),
    ]


def drawn(out: Path, draw: Callable[..., Figure], file: str) -> Figure:
    return draw(out / file)


def test_the_figure_of_a_round_has_the_signature_of_each_node(out: Path) -> None:
    before, after = drawn(out, draw_iteration, "colourings.json").axes
    found = read(out, "colourings.json")["iteration"]
    texts, others = ([text.get_text() for text in axes.texts] for axes in (after, before))
    assert texts == [*map(str, found["after"]), *found["signatures"]]
    assert others == [*map(str, found["before"])]


def test_the_figure_of_a_pair_has_a_row_for_each_test(out: Path) -> None:
    rows = drawn(out, draw_pair, "colourings.json").subfigs
    assert [row.get_suptitle() for row in rows] == [
        "1-WL: equal colours in every round",
        "SEG-WL with Laplacian eigenvalues: different colours from the start",
        "SEG-WL with RWSE: different colours from the start",
    ]
    titles = [axes.get_title() for axes in rows[0].axes]
    assert titles == ["decalin: 0 (2x), 1 (4x), 2 (4x)", "bicyclopentyl: 0 (2x), 1 (4x), 2 (4x)"]


def test_the_figure_of_hardmax_has_errors_and_bounds_but_none_that_are_zero(out: Path) -> None:
    (axes,) = drawn(out, draw_hardmax, "hardmax.json").axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [name for name in names if name.endswith("0 at every λ")] == ["3 tied maxima, k = 3: 0 at every λ"]
    rows = read(out, "hardmax.json")["rows"]
    dashed = [list(line.get_ydata()) for line in axes.get_lines() if line.get_linestyle() == "--"]
    assert dashed == [row["bound"] for row in rows if any(row["error"])]


def test_the_figure_of_the_fit_joins_the_means_of_seeds(out: Path) -> None:
    (axes,) = drawn(out, draw_toy_fit, "fit.json").axes
    means = [mean(row["error"]) for row in read(out, "fit.json")["rows"]]
    assert [list(line.get_ydata()) for line in axes.get_lines()[:2]] == [means[:2], means[2:]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["theorem1", "--trials", "0"], "--trials: got 0, at least 1 is needed"),
        (["fit", "--blocks", "2", "-1"], "--blocks: got"),
        (["fit", "--target", "nothing"], "invalid choice"),
        (["nothing"], "invalid choice"),
    ],
)
def test_wrong_arguments_end_with_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        expressivity.main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_brec_counts_the_pairs_that_1wl_and_3wl_tell_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_brec_without_its_data_is_one_line_and_its_sample_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with offline():
        assert expressivity.main(["brec", "--data", str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    assert "BREC: raw files are missing" in capsys.readouterr().err
    assert expressivity.main(["brec", "--sample", "--out", str(tmp_path)]) == 0
    assert "SAMPLE" in capsys.readouterr().out
    assert read(tmp_path, "brec_wl.json")["sample"]
