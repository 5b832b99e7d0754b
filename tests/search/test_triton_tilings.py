"""Tile sizes of the GPU search by measurement: what is fastest, left out, and kept on disk; no GPU is needed."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphgps_kmip.errors import InputError
from graphgps_kmip.search import SearchProblem, triton_tilings
from graphgps_kmip.search.triton_tilings import (
    CANDIDATES,
    Measured,
    Tiling,
    best_tiling,
    choose_tiling,
    fastest,
    problem_class,
)

FIRST, *OTHERS = CANDIDATES


def timed(
    seconds: dict[Tiling, float], spills: dict[Tiling, int] | None = None, broken: tuple[Tiling, ...] = ()
) -> Tiling:
    """Return the fastest of all candidates, where `seconds` are what the passes take (else 1)."""
    last: list[Tiling] = []

    def run(tiling: Tiling) -> SimpleNamespace:
        if tiling in broken:
            raise RuntimeError("PassManager::run failed")
        last.append(tiling)
        return SimpleNamespace(n_spills=(spills or {}).get(tiling, 0))

    def clock(call: Any) -> float:
        call()
        return seconds.get(last[-1], 1.0)

    return fastest(CANDIDATES, run, clock)


def test_the_fastest_is_taken() -> None:
    assert timed({OTHERS[1]: 0.5}) == OTHERS[1]


def test_one_that_spills_is_left_out_unless_all_do() -> None:
    assert timed({OTHERS[1]: 0.5, OTHERS[2]: 0.7}, spills={OTHERS[1]: 4}) == OTHERS[2]
    assert timed({OTHERS[1]: 0.5}, spills=dict.fromkeys(CANDIDATES, 4)) == OTHERS[1]


def test_one_that_does_not_compile_is_left_out() -> None:
    assert timed({FIRST: 0.1, OTHERS[0]: 0.5}, broken=(FIRST,)) == OTHERS[0]
    assert timed({}, broken=CANDIDATES) == FIRST


def test_timing_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_tilings, "SECONDS", -1.0)
    assert timed({FIRST: 0.6, OTHERS[0]: 0.5}) == FIRST


class OnCard:
    """A problem that says it is on a GPU: what decides about measuring reads sizes and the device alone."""

    num_heads, num_graphs, num_keys = 1, 1, 10

    def __init__(self, n: int = 40_000) -> None:
        self.q = self.k = SimpleNamespace(
            device=torch.device("cuda"), dtype=torch.float32, size=lambda dim=None: (1, n, 10)[dim]
        )


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Tiling, ...]]:
    """Pretend a card; return what is measured on it, of which the last candidate is the fastest."""
    measured = []

    def measure(tilings: Any, run: Any) -> Tiling:  # noqa: ARG001
        measured.append(tuple(tilings))
        return CANDIDATES[-1]

    monkeypatch.setattr(triton_tilings, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(triton_tilings, "card_name", lambda _: "A card, driver 1.2, Triton 3")
    monkeypatch.setattr(triton_tilings, "fastest", measure)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_of", lambda _: torch.device("cpu"))
    triton_tilings._known.cache_clear()
    yield measured
    triton_tilings._known.cache_clear()


def test_a_class_of_problems_is_measured_once_and_kept(
    card: list[tuple[Tiling, ...]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reckoned = choose_tiling(OnCard())
    assert best_tiling(OnCard(), "fp16", lambda _: None) == CANDIDATES[-1] != reckoned
    assert best_tiling(OnCard(45_000), "fp16", lambda _: None) == CANDIDATES[-1]
    assert card == [tuple(dict.fromkeys((reckoned, *CANDIDATES)))]
    assert len([one for one in caplog.records if "are the fastest here" in one.message]) == 1
    triton_tilings._known.cache_clear()  # as in a new process
    assert best_tiling(OnCard(), "fp16", lambda _: None) == CANDIDATES[-1]
    assert len(card) == 1
    best_tiling(OnCard(), "tf32", lambda _: None)
    best_tiling(OnCard(400_000), "fp16", lambda _: None)
    assert len(card) == 3
    stored = json.loads((tmp_path / "tilings.json").read_text())
    assert list(stored) == ["A card, driver 1.2, Triton 3"]
    assert len(stored["A card, driver 1.2, Triton 3"]) == 3


@pytest.mark.usefixtures("card")
def test_nothing_is_measured_for_small_problems_on_a_cpu_in_a_graph_or_when_switched_off(
    card: list[tuple[Tiling, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    best_tiling(OnCard(10_000), "fp16", lambda _: None)
    x = torch.empty(1).expand(1, 40_000, 10)
    ptr = torch.tensor([0, 40_000])
    best_tiling(SearchProblem(x, x, ptr, ptr, 10), "fp16", lambda _: None)
    monkeypatch.setenv("GRAPHGPS_KMIP_TILES", "reckoned")
    best_tiling(OnCard(), "fp16", lambda _: None)
    monkeypatch.delenv("GRAPHGPS_KMIP_TILES")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    best_tiling(OnCard(), "fp16", lambda _: None)
    assert card == []


def test_an_unknown_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHGPS_KMIP_TILES", "guessed")
    with pytest.raises(InputError, match="GRAPHGPS_KMIP_TILES=guessed: no such mode, allowed are measured, reckoned"):
        best_tiling(OnCard(), "fp16", lambda _: None)


def test_cards_share_a_file_and_a_damaged_one_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "tilings.json"
    file.write_text("{damaged")
    one, other = Measured(file, "one"), Measured(file, "other")
    assert "tile sizes are measured anew" in caplog.text
    one.tilings["x"], other.tilings["y"] = FIRST, OTHERS[0]
    one.store()
    other.store()
    assert Measured(file, "one").tilings == {"x": FIRST}
    assert Measured(file, "other").tilings == {"y": OTHERS[0]}


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    Measured(tmp_path / "none" / "tilings.json", "one").store()
    assert "tile sizes are measured in each process" in caplog.text


def test_classes_differ_by_what_changes_the_kernel_or_its_work() -> None:
    base = problem_class(OnCard(40_000), "fp16")
    assert base == problem_class(OnCard(60_000), "fp16")
    assert len({base, problem_class(OnCard(10**6), "fp16"), problem_class(OnCard(40_000), "tf32")}) == 3
