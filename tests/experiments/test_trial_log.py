"""The journal of a search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphgps_kmip.experiments.hyperparameter_search import run_search
from graphgps_kmip.experiments.tuning.journal import Journal
from tests.experiments.search_cases import RANGES, TOGETHER, Recorder, scores, toy


def searched(tmp_path: Path) -> Path:
    score = scores(lr001=0.6, depth2=FloatingPointError("loss is nan | epoch 2"), depth8=0.625, lr001_depth8=0.75)
    (outcome,) = run_search(toy(), "linear", RANGES, Recorder(tmp_path, score), tmp_path)
    return outcome.journal


def test_the_page_tells_trials_choice_and_final_seeds(tmp_path: Path) -> None:
    page = searched(tmp_path).read_text()
    assert "# Search of Toys/kmip.yaml for toy" in page
    assert "| depth | 4 | 2, 4, 8 |" in page
    (trial,) = (line for line in page.splitlines() if "`search-depth8`" in line and line.startswith("| "))
    assert "| depth 8 | depth alone | 0.625 | 1,234 | 1 min 01 s | done |" in trial
    assert "diverged: loss is nan / epoch 2" in page  # a bar would end the cell
    assert (
        f"`{TOGETHER}` has the largest validation f1, 0.75, of 4 finished trials (tried: 5; the default: 0.5)" in page
    )
    assert "| depth | 2: diverged; 4: 0.5; 8: 0.625 | 8 |" in page
    assert f"Toys/kmip-{TOGETHER}: test f1 0.7 ± 0.07071 (2 of 2 seeds" in page


def test_the_test_split_is_not_looked_at_before_the_choice(tmp_path: Path) -> None:
    entries = [json.loads(line) for line in searched(tmp_path).with_suffix(".jsonl").read_text().splitlines()]
    kinds = [entry["kind"] for entry in entries]
    assert all("test" not in entry for entry in entries[: kinds.index("choice") + 1])
    assert [entry["test"] for entry in entries if entry["kind"] == "final"] == [0.75, 0.65]


def test_the_page_says_how_to_run_the_choice_by_hand(tmp_path: Path) -> None:
    page = searched(tmp_path).read_text()
    (command,) = (line for line in page.splitlines() if line.startswith("python main.py"))
    words = command.split()
    assert words[2:6] == ["--cfg", "configs/Toys/kmip.yaml", "--repeat", "2"]
    assert "optim.base_lr 0.01" in command
    assert "gt.layers 8" in command
    assert "base: kmip.yaml\noptim:\n  base_lr: 0.01\ngt:\n  layers: 8\n" in page


def test_the_page_is_made_of_the_lines_alone(tmp_path: Path) -> None:
    page = searched(tmp_path)
    before = page.read_text()
    page.unlink()
    Journal(page.with_suffix(".jsonl")).rebuild()
    assert page.read_text() == before


def test_a_line_that_a_killed_process_left_unfinished_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "one.jsonl"
    Journal(file).note("trial", "search-default", why="default", differing={}, state="waiting")
    with open(file, "a") as torn:
        torn.write('{"kind": "tri')
    Journal(file).note("trial", "search-k5", why="k alone", differing={"k": "5"}, state="waiting")
    assert [json.loads(line)["name"] for line in file.read_text().splitlines()] == ["search-default", "search-k5"]


def test_the_same_news_is_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphgps_kmip.experiments.tuning.journal._now", map(str, range(9)).__next__)
    journal = Journal(tmp_path / "one.jsonl")
    for why in ("TPE 1", "TPE 7"):
        journal.note("trial", "search-default", why=why, differing={}, state="done", value=0.5)
    journal.note("trial", "search-default", why="TPE 7", differing={}, state="done", value=0.25)
    assert len(journal.file.read_text().splitlines()) == 2
