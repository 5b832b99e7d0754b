"""The check of a machine: what is right passes, what is wrong is found, named and ends with exit code 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import sparse_attention as operator
from graphgps_kmip.check import check_command as check
from graphgps_kmip.check import float64_reference, kernels, speed
from graphgps_kmip.check.attention_batches import CPU
from graphgps_kmip.check.check_arguments import parse
from graphgps_kmip.check.float64_reference import Case, compare_autocast, compare_float32, tiny_graphs
from graphgps_kmip.check.outcomes import NotHere, attempt, lines
from graphgps_kmip.native import unavailable_reason, without_kernels
from graphgps_kmip.registry import Spec, entries

CASES = {f"{case.kind} {case.name}": case for case in float64_reference.cases()}
FEW = ("attention kMIP", "message passing GatedGCN", "model GatedGCN+kMIP")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name, marks=[] if name in FEW else [pytest.mark.thorough]) for name, case in CASES.items()],
)
def test_every_component_is_right_here(case: Case) -> None:
    assert "gradients" in compare_float32(case, CPU)


def test_the_cases_are_the_registry() -> None:
    for kind, title in (("attention", "attention"), ("message_passing", "message passing")):
        assert {f"{title} {name}" for name in entries(kind)} <= CASES.keys()


class Doubled(nn.Linear):
    """A linear map that is right in float64 and wrong in other precisions, as `wrong` says."""

    wrong = ""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if out.dtype != torch.float64 and self.wrong == "output":
            return out * 1.001
        if out.dtype == torch.float32 and self.wrong == "gradient":
            return out + 0.1 * (out - out.detach())
        if out.dtype not in (torch.float64, torch.float32) and self.wrong == "half":
            return out * 1.5
        return out / len(x) if self.wrong == "tiny" else out


def doubled(wrong: str) -> Case:
    kind = type("Wrong", (Doubled,), {"wrong": wrong})
    return Case(
        "model", wrong, lambda: kind(3, 2), lambda sizes, _: torch.randn(sum(sizes), 3).double(), nn.Module.__call__
    )


@pytest.mark.parametrize(
    ("wrong", "tried", "message"),
    [
        ("output", compare_float32, "the output is off by"),
        ("gradient", compare_float32, "the gradient of weight is off by"),
        ("half", lambda case, device: compare_autocast(case, device, torch.bfloat16), "half of the outputs"),
    ],
)
def test_a_wrong_component_is_found(wrong: str, tried: Any, message: str) -> None:
    tried(doubled(""), CPU)
    with pytest.raises(AssertionError, match=message):
        tried(doubled(wrong), CPU)


def test_a_component_that_fails_on_tiny_graphs_is_found() -> None:
    one_edge = CASES["message passing GCN"]

    def nan_without_edges(layer: nn.Module, given: Any) -> Tensor:
        return one_edge.call(layer, given) / (given[1].size(1) > 0)

    tiny_graphs(one_edge, CPU)
    with pytest.raises(AssertionError, match="one node: not finite: the output"):
        tiny_graphs(Case("message passing", "broken", one_edge.build, one_edge.inputs, nan_without_edges), CPU)


@pytest.mark.compiler
def test_a_wrong_kernel_is_found_because_the_reference_uses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["attention kMIP"]
    forward = operator.cpu_forward

    def wrong_forward(*given: Any) -> Any:
        out, *rest = forward(*given)
        return out + 1, *rest

    monkeypatch.setattr(operator, "cpu_forward", wrong_forward)
    with pytest.raises(AssertionError, match="the output is off by"):
        compare_float32(case, CPU)
    with pytest.raises(AssertionError, match="output and gradients of q, k, v are off by"):
        kernels.compare_sparse_attention(CPU)


@pytest.mark.compiler
def test_kernels_are_off_inside_the_block_alone() -> None:
    assert unavailable_reason("sparse_attention") is None
    with without_kernels():
        assert unavailable_reason("sparse_attention") == "switched off"
    assert unavailable_reason("sparse_attention") is None


@pytest.mark.parametrize("fault", ["score", "key", "slot", "twice"])
def test_a_wrong_search_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = entries("search_backend")["exact"]
    _, problem = next(kernels.problems(CPU))
    assert kernels.compare_search(exact, problem)

    def search(problem: Any) -> tuple[Tensor, Tensor]:
        index, score = (one.clone() for one in exact.component(problem))
        if fault == "score":
            score += 0.01
        elif fault == "key":
            index[0, 0, 0] = (index[0, 0, 0] + 1) % 1000
        elif fault == "slot":
            index[:, 1370:1373, 2:] = -1
        else:
            index[0, 0, 1], score[0, 0, 1] = index[0, 0, 0], score[0, 0, 0]
        return index, score

    wrong = Spec("search_backend", "exact", search, "", traits=exact.traits)
    monkeypatch.setattr("graphgps_kmip.search.dispatch.choose", lambda *_: wrong)
    with pytest.raises(AssertionError):
        kernels.compare_search(wrong, problem)


def test_the_command_prints_every_component_and_writes_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(speed.NUM_NODES, "cpu", 64)
    monkeypatch.setattr(check, "cases", lambda: [CASES["message passing GCN"]])
    file = tmp_path / "check.json"
    words = ["--device", "cpu", "--only", "kernels,components,speed", "--json", str(file)]
    assert check.run(parse(words)) == 0
    text = capsys.readouterr().out
    for line in ("ok       search backend chunked  4 of 4", "skipped  search backend triton", "0 wrong, on cpu"):
        assert line in text
    stored = json.loads(file.read_text())
    assert {one["name"] for one in stored["outcomes"]} == {*entries("search_backend"), *kernels.OPERATORS, "GCN"}
    assert stored["hardware"]["device"] == "cpu"
    assert [row["method"] for row in stored["speed"]][:2] == ["k-MIP", "torch, full attention, flash"]
    assert all(row["ms"] > 0 for row in stored["speed"])

    monkeypatch.setattr(check, "cases", lambda: [doubled("output")])
    assert check.run(parse(["--device", "cpu", "--only", "components"])) == 1
    text = capsys.readouterr().out
    assert "FAILED: float32: AssertionError: the output is off by" in text
    assert "1 wrong, on cpu" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "gpu"], "--device gpu: no device of torch; use auto, cpu or cuda"),
        (["--device", "meta"], "--device meta: this package is tested on cpu and cuda"),
        (["--device", "cuda:99"], "--device cuda:99: torch sees"),
        (["--attention", "no_such_module:Mine"], "--attention no_such_module:Mine: No module named"),
        (["--attention", "torch"], r"(it must be MODULE:CLASS)"),
        (["--json", "no/folder/check.json"], "there is no folder no/folder"),
        (["--only", "kernel"], "unknown part 'kernel'. Did you mean kernels"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = check.run(parse(words))
    except SystemExit as ended:  # argparse's own
        code = ended.code
    assert code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_file_that_cannot_be_written_at_the_end_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(check, "write_json", full)
    monkeypatch.setattr(check, "cases", list)
    assert check.run(parse(["--device", "cpu", "--only", "components", "--json", str(tmp_path / "check.json")])) == 2
    assert capsys.readouterr().err.endswith("check.json: No space left on device\n")


def test_outcomes_of_one_component_are_one_line() -> None:
    def not_here() -> None:
        raise NotHere("no GPU")

    def wrong() -> None:
        raise ValueError("two\nlines")

    found = [
        attempt("attention", "A", name, call) for name, call in [("x", lambda: "1e-7"), ("y", not_here), ("z", wrong)]
    ]
    assert lines(found) == [
        "FAILED   attention A  1 of 3  x 1e-7",
        "         skipped: y: no GPU",
        "         FAILED: z: ValueError: two lines",
    ]


@pytest.mark.parametrize("name", kernels.OPERATORS)
def test_every_operator_is_right_here_and_a_wrong_one_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "gradients" in kernels.OPERATORS[name](CPU)
    compared = kernels._compared

    def with_a_fault(given: dict[str, Tensor], compute: Any, plain: Any) -> str:
        return compared(given, lambda *floats: compute(*(one * 1.001 for one in floats)), plain)

    monkeypatch.setattr(kernels, "_compared", with_a_fault)
    with pytest.raises(AssertionError, match="output and gradients of .* are off by"):
        kernels.OPERATORS[name](CPU)
