"""The trial log of a search."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphgps_kmip.experiments.hyperparameter_search import run_search
from tests.experiments.search_cases import RANGES, TOGETHER, Recorder, scores, toy

SCORES = scores(lr001=0.6, depth2=FloatingPointError("loss is nan | epoch 2"), depth8=0.625, lr001_depth8=0.75)


def searched(tmp_path: Path, limit: int = 10**6) -> Path:
    (outcome,) = run_search(toy(), "linear", RANGES, Recorder(tmp_path, SCORES, limit=limit), tmp_path)
    return outcome.log


def test_it_tells_trials_choice_and_final_seeds(tmp_path: Path) -> None:
    page = searched(tmp_path).read_text()
    assert "# Search of Toys/kmip.yaml for toy" in page
    assert "| depth | 4 | 2, 4, 8 |" in page
    (trial,) = (line for line in page.splitlines() if "`search-depth8`" in line and line.startswith("| "))
    assert "| depth 8 | depth alone | 0.625 | 1,234 | 1 min 1 s | done |" in trial
    assert "diverged: loss is nan / epoch 2" in page  # a bar would end the cell
    assert (
        f"`{TOGETHER}` has the largest validation f1, 0.75, of 4 finished trials (tried: 5; the default: 0.5)" in page
    )
    assert "| depth | 2: diverged; 4: 0.5; 8: 0.625 | 8 |" in page
    assert f"The best values together are `{TOGETHER}`." in page
    assert f"Toys/kmip-{TOGETHER}: test f1 0.7 ± 0.07071 (2 of 2 seeds" in page


def test_a_combination_that_was_tried_before_is_said_to_be(tmp_path: Path) -> None:
    (outcome,) = run_search(toy(), "linear", RANGES, Recorder(tmp_path, scores(depth8=0.7)), tmp_path)
    assert "The best values together are `search-depth8`, which was tried before." in outcome.log.read_text()


def test_it_shows_no_test_score_before_the_choice(tmp_path: Path) -> None:
    score = scores(lr001=0.6, depth8=0.625, lr001_depth8=0.75)
    runner = Recorder(tmp_path, lambda tag: score(tag) + 0.00123, limit=4)
    with pytest.raises(KeyboardInterrupt):
        run_search(toy(), "linear", RANGES, runner, tmp_path)
    page = (tmp_path / "search/toy/kmip-linear.md").read_text()
    assert "## Final seeds" not in page
    assert "test f1" not in page


def test_it_says_how_to_run_the_choice_by_hand(tmp_path: Path) -> None:
    page = searched(tmp_path).read_text()
    (command,) = (line for line in page.splitlines() if line.startswith("python main.py"))
    words = command.split()
    assert words[2:6] == ["--cfg", "configs/Toys/kmip.yaml", "--repeat", "2"]
    assert "optim.base_lr 0.01" in command
    assert "gt.layers 8" in command
    assert "base: kmip.yaml\noptim:\n  base_lr: 0.01\ngt:\n  layers: 8\n" in page


def test_a_search_that_is_started_again_writes_the_same_page(tmp_path: Path) -> None:
    page = searched(tmp_path)
    before = page.read_text()
    page.unlink()
    searched(tmp_path, limit=0)
    assert page.read_text() == before
