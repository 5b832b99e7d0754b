"""The choice of a search backend, automatic, by name, explained, extended; what a search refuses."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphgps_kmip import registry
from graphgps_kmip.registry import entries, register
from graphgps_kmip.search import SearchProblem, choose, explain_choice, topk_inner_product

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
    assert all(f"  {name}: " in caplog.text for name in entries("search_backend"))
    assert f"{choose(PROBLEM).name!r} taken for 'auto'" in caplog.text
    assert "exact: not preferred: holds the scores of all pairs" in caplog.text


@pytest.mark.usefixtures("own_registry")
def test_one_more_entry_is_one_more_backend() -> None:
    search = entries("search_backend")["exact"].component
    reasons = {"not_supported_reasons": lambda problem: ["only K = 2"] * (problem.num_keys != 2)}
    register("search_backend", "mine", lambda problem: search(problem), summary="a copy", **reasons)
    torch.testing.assert_close(topk_inner_product(X, X, num_keys=2, backend="mine")[1], torch.full((6, 2), 2.0))
    with pytest.raises(ValueError, match="'mine' cannot solve this problem: only K = 2"):
        topk_inner_product(X, X, num_keys=3, backend="mine")


@pytest.mark.usefixtures("own_registry")
def test_auto_passes_over_what_cannot_and_what_is_not_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._SPECS, "search_backend", {})

    def add(name: str, **reasons: Callable[[SearchProblem], list[str]]) -> None:
        register("search_backend", name, "not called", summary="a backend", **reasons)

    add("cannot", not_supported_reasons=lambda _: ["it is too old"])
    with pytest.raises(ValueError, match="no search backend can solve this problem:\n  cannot: cannot: it is too old"):
        choose(PROBLEM)
    add("slow", not_preferred_reasons=lambda _: ["it is slow"])
    assert choose(PROBLEM).name == "slow"
    add("fast")
    assert choose(PROBLEM).name == "fast"


def test_keops_says_when_it_or_a_compiler_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    message = (
        r"pykeops is not installed \(pip install pykeops\).*C\+\+ compiler and no-such-compiler is not on the PATH"
    )
    with pytest.raises(ValueError, match=message):
        topk_inner_product(X, X, num_keys=2, backend="keops")


def test_without_reading_values_the_answer_is_the_same_and_nan_where_it_would_be_refused() -> None:
    expected = topk_inner_product(X, X, num_keys=2)
    torch.testing.assert_close(topk_inner_product(X, X, num_keys=2, read_values=False), expected)
    for bad in (torch.inf, torch.nan, 1e30):  # the square of the last overflows
        wrong = X.index_fill(-1, torch.tensor(0), bad)
        assert topk_inner_product(wrong, wrong, num_keys=2, read_values=False)[1].isnan().all()


PTR = torch.tensor([0, 2, 6])

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dims": ({"k": torch.ones(6, 3)}, r"\(6, 2\) and \(6, 3\)"),
    "heads": ({"k": torch.ones(2, 6, 2)}, r"\(6, 2\) and \(2, 6, 2\)"),
    "no rows": ({"q": torch.ones(2)}, r"\(2,\) and \(6, 2\)"),
    "dtypes": ({"k": X.double()}, "torch.float32 and torch.float64"),
    "integers": ({"q": X.long(), "k": X.long()}, "got torch.int64 and torch.int64"),
    "K zero": ({"num_keys": 0}, "num_keys must be an integer >= 1, got 0"),
    "K true": ({"num_keys": True}, "got True"),
    "K float": ({"num_keys": 2.0}, "got 2.0"),
    "one ptr": ({"ptr_k": None}, "got only one of them"),
    "ptr start": (
        {"ptr_q": torch.tensor([1, 2, 6])},
        r"ptr_q must increase from 0 to 6 \(the rows of q\), got \[1, 2, 6\]",
    ),
    "ptr end": ({"ptr_k": PTR[:-1]}, r"ptr_k must increase from 0 to 6 \(the rows of k\), got \[0, 2\]"),
    "ptr falls": ({"ptr_q": torch.tensor([0, 4, 2, 6])}, r"got \[0, 4, 2, 6\]"),
    "ptr empty": ({"ptr_q": PTR[:0]}, r"got \[\]"),
    "ptr dtype": ({"ptr_q": PTR.float()}, "torch.float32"),
    "ptr shape": ({"ptr_q": PTR[None]}, r"got shape \(1, 3\)"),
    "ptr lengths": ({"ptr_q": torch.tensor([0, 6])}, r"\(2,\) and \(3,\)"),
    "NaN in q": ({"q": X * torch.nan}, "^q has NaN"),
    "NaN in k": ({"k": X.index_fill(0, torch.tensor([3]), torch.nan)}, "^k has NaN"),
    "infinite k": ({"k": X * torch.inf}, "^k has NaN or infinite values"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_input_is_refused_by_name(case: str) -> None:
    arguments, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        topk_inner_product(**{"q": X, "k": X, "ptr_q": PTR, "ptr_k": PTR, "num_keys": 2, **arguments})


@pytest.mark.cuda
def test_tensors_on_two_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="cpu and cuda"):
        topk_inner_product(X, X.cuda())
