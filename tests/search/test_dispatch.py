"""The choice of a search backend: automatic, by name, explained, and extended by one row."""

from __future__ import annotations

import logging

import pytest
import torch

from graphgps_kmip.search import BACKENDS, Backend, SearchProblem, choose, dispatch, explain_choice, topk_inner_product

X = torch.ones(6, 2)
PROBLEM = SearchProblem.of(X, X, None, None, 2)


@pytest.mark.compiler
def test_auto_takes_the_kernel_on_a_cpu() -> None:
    assert choose(PROBLEM).name == "cpu"


def test_an_unknown_name_is_refused_with_near_misses() -> None:
    with pytest.raises(ValueError, match="unknown search backend 'chunkd'.*did you mean 'chunked'"):
        topk_inner_product(X, X, backend="chunkd")


def test_the_explanation_names_every_backend_and_what_speaks_against_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        topk_inner_product(X, X, num_keys=2, explain=True)
    assert caplog.messages == [explain_choice(PROBLEM)]
    assert all(f"  {name}: " in caplog.text for name in BACKENDS)
    assert f"{choose(PROBLEM).name!r} taken for 'auto'" in caplog.text
    assert "exact: not preferred: holds the scores of all pairs" in caplog.text


def test_nothing_is_logged_unasked(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        topk_inner_product(X, X, num_keys=2)
    assert caplog.messages == []


def test_one_more_row_is_one_more_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Backend("mine", BACKENDS["exact"].search, "a copy", lambda problem: ["only K = 2"] * (problem.num_keys != 2))
    monkeypatch.setitem(BACKENDS, "mine", row)
    torch.testing.assert_close(topk_inner_product(X, X, num_keys=2, backend="mine")[1], torch.full((6, 2), 2.0))
    with pytest.raises(ValueError, match="'mine' cannot solve this problem: only K = 2"):
        topk_inner_product(X, X, num_keys=3, backend="mine")


def test_auto_passes_over_what_cannot_and_what_is_not_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    table: dict[str, Backend] = {}
    monkeypatch.setattr(dispatch, "BACKENDS", table)
    search = "not called"
    table["cannot"] = Backend("cannot", search, "", lambda _: ["it is too old"])
    with pytest.raises(ValueError, match="no search backend can solve this problem:\n  cannot: cannot: it is too old"):
        choose(PROBLEM)
    table["slow"] = Backend("slow", search, "", not_preferred_reasons=lambda _: ["it is slow"])
    assert choose(PROBLEM).name == "slow"
    table["fast"] = Backend("fast", search, "")
    assert choose(PROBLEM).name == "fast"


def test_keops_says_when_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    with pytest.raises(ValueError, match=r"needs a C\+\+ compiler and no-such-compiler is not on the PATH"):
        topk_inner_product(X, X, num_keys=2, backend="keops")


def test_keops_says_when_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # noqa: ARG005
    with pytest.raises(ValueError, match=r"pykeops is not installed \(pip install pykeops\)"):
        topk_inner_product(X, X, num_keys=2, backend="keops")
