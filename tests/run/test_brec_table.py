"""run/brec.py: runs and colour refinements become rows, incomplete categories are left out, wrong folders one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphgps_kmip.data.sets.brec import CATEGORIES, NUM_PAIRS
from run import brec


def run_folder(folder: Path, pairs: dict[int, bool], **record: object) -> Path:
    """Write a finished run that has tested some pairs: pair -> distinguished; the first one is not reliable."""
    folder.mkdir(parents=True)
    lines = [{"settings": {}}, *({"pair": pair, "distinguished": told} for pair, told in pairs.items())]
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
    words = ["--columns", "CFI", "unreliable", "--rows", f"some={some}", "--out", str(out)]
    assert brec.main(words) == 0
    assert cells(out) == {"some": {"CFI": [50], "unreliable": [1]}}


def test_colour_refinements_are_rows_too(tmp_path: Path) -> None:
    tests = {
        name: {"separated_after": {str(pair): 2 if pair in told else None for pair in range(NUM_PAIRS)}}
        for name, told in (("1-WL", ()), ("3-WL", CATEGORIES["extension"]))
    }
    path, out = tmp_path / "brec_wl.json", tmp_path / "cells.json"
    path.write_text(json.dumps({"sample": False, "pairs": "all", "tests": tests}))
    assert brec.main(["--wl", str(path), "--out", str(out)]) == 0
    assert cells(out)["1-WL"]["Total"] == [0]
    assert (cells(out)["3-WL"]["Extension"], cells(out)["3-WL"]["BREC"]) == ([100], [25])


def test_a_sample_counts_what_there_is(tmp_path: Path) -> None:
    folder, out = run_folder(tmp_path / "a", {0: True, 1: False}, sample=True), tmp_path / "cells.json"
    assert brec.main(["--rows", f"x={folder}", "--out", str(out), "--sample"]) == 0
    assert cells(out) == {"x": {"Basic": [1], "Total": [1], "BREC": [50]}}


def test_samples_results_and_unfinished_runs_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "cells.json"
    sample, run = run_folder(tmp_path / "a", {0: True}, sample=True), run_folder(tmp_path / "b", {0: True})
    for words, line in (
        ([f"x={sample}"], "holds a sample: give --sample, or name another folder"),
        ([f"x={run}", "--sample"], "holds a result: leave --sample out, or name another folder"),
        ([f"x={tmp_path}"], "holds no finished run: run train.mode brec there first"),
    ):
        assert brec.main(["--rows", *words, "--out", str(out)]) == 2
        assert capsys.readouterr().err.strip().endswith(line)
    assert not out.exists()
    with pytest.raises(SystemExit):
        brec.main(["--rows", "x", "--out", str(out)])
    assert "expected NAME=FOLDER, got 'x'" in capsys.readouterr().err
