"""The check of a machine: what is right passes, what is wrong is found, named and ends with exit code 1."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphgps_kmip.networks  # noqa: F401 (registers k-MIP)
from graphgps_kmip.check import parse
from graphgps_kmip.ops import sparse_attention as operator
from graphgps_kmip.ops.native import unavailable_reason, without_kernels
from graphgps_kmip.registry import AttentionTraits, Spec, entries
from graphgps_kmip.testing import comparisons, machine_check
from graphgps_kmip.testing.comparisons import OPERATORS, PROBLEMS, NotHere, compare_layer, compare_operator
from graphgps_kmip.testing.laws import CPU
from graphgps_kmip.testing.machine_check import attempt, list_lines, run

LAYERS = [*entries("attention").values(), *entries("message_passing").values()]
FEW = ("kMIP", "GatedGCN")


@pytest.mark.parametrize(
    "spec",
    [pytest.param(spec, id=spec.name, marks=[] if spec.name in FEW else [pytest.mark.thorough]) for spec in LAYERS],
)
def test_every_layer_is_right_here(spec: Spec) -> None:
    assert "gradients" in compare_layer(spec, CPU)


class Doubled(nn.Linear):
    """A linear map that is right in float64, and in float32 is wrong as `wrong` says."""

    wrong = ""

    def __init__(self, dim: int, num_heads: int) -> None:  # noqa: ARG002
        super().__init__(dim, dim)

    def forward(self, x: Tensor, _context: Any) -> Tensor:
        out = super().forward(x)
        if out.dtype == torch.float64 or not self.wrong:
            return out
        return out * 1.001 if self.wrong == "output" else out + 0.1 * (out - out.detach())


def doubled(wrong: str) -> Spec:
    return Spec("attention", "Wrong", type("Wrong", (Doubled,), {"wrong": wrong}), "", traits=AttentionTraits())


@pytest.mark.parametrize(
    ("wrong", "message"), [("output", "the output is off by"), ("gradient", "the gradient of .* is off by")]
)
def test_a_wrong_layer_is_found(wrong: str, message: str) -> None:
    compare_layer(doubled(""), CPU)
    with pytest.raises(AssertionError, match=message):
        compare_layer(doubled(wrong), CPU)


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_is_right_here_and_a_wrong_one_is_found(name: str) -> None:
    inputs, fused, plain = OPERATORS[name](CPU)
    assert "gradients" in compare_operator(inputs, fused, plain)
    with pytest.raises(AssertionError, match=f"output and gradients of {', '.join(inputs)} are off by"):
        compare_operator(inputs, lambda *floats: fused(*(tensor * 1.001 for tensor in floats)), plain)


@pytest.mark.compiler
def test_a_wrong_kernel_is_found_because_the_reference_uses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = operator.cpu_forward

    def wrong_forward(*arguments: Any) -> Any:
        out, *rest = forward(*arguments)
        return out + 1, *rest

    monkeypatch.setattr(operator, "cpu_forward", wrong_forward)
    with pytest.raises(AssertionError, match="the output is off by"):
        compare_layer(entries("attention")["kMIP"], CPU)


@pytest.mark.compiler
def test_kernels_are_off_inside_the_block_alone() -> None:
    assert unavailable_reason("sparse_attention") is None
    with without_kernels():
        assert unavailable_reason("sparse_attention") == "switched off"
    assert unavailable_reason("sparse_attention") is None


@pytest.mark.parametrize("fault", ["score", "key", "slot", "twice"])
def test_a_wrong_search_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, problem = entries("search_backend")["exact"], comparisons.draw_search(CPU, *PROBLEMS[0])
    assert comparisons.compare_search(exact, problem)

    def search(problem: Any) -> tuple[Tensor, Tensor]:
        index, score = (out.clone() for out in exact.component(problem))
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
        comparisons.compare_search(wrong, problem)


def test_the_command_prints_every_component_and_writes_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(machine_check.NUM_NODES, "cpu", 64)
    file = tmp_path / "check.json"
    assert run(parse(["--device", "cpu", "--only", "kernels,speed", "--json", str(file)])) == 0
    text = capsys.readouterr().out
    for line in ("ok       search backend chunked  4 of 4", "skipped  search backend triton", "0 wrong, on cpu"):
        assert line in text
    stored = json.loads(file.read_text())
    assert {outcome["name"] for outcome in stored["outcomes"]} == {*entries("search_backend"), *OPERATORS}
    assert stored["hardware"]["device"] == "cpu"
    assert stored["speed"][0]["method"] == "k-MIP"
    assert all(row["ms"] > 0 for row in stored["speed"])


def test_something_wrong_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = {"attention": {"Wrong": doubled("output")}, "message_passing": {}}
    monkeypatch.setattr(machine_check, "entries", layers.get)
    assert run(parse(["--device", "cpu", "--only", "components"])) == 1
    text = capsys.readouterr().out
    assert "FAILED: float32: AssertionError: the output is off by" in text
    assert "1 wrong, on cpu" in text

    def fill(*_: Any) -> None:
        raise OSError(28, "No space left on device", "check.json")

    monkeypatch.setattr(machine_check, "write_json", fill)
    assert run(parse(["--device", "cpu", "--only", "components", "--json", str(tmp_path / "check.json")])) == 2
    assert capsys.readouterr().err.startswith("error: check.json: No space left on device")


@pytest.mark.parametrize(
    ("argv", "message"),
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
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = run(parse(argv))
    except SystemExit as ended:  # argparse's own
        code = ended.code
    assert code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_outcomes_of_one_component_are_one_line() -> None:
    def fail(error: Exception) -> None:
        raise error

    checks = {
        "x": lambda: "1e-7",
        "y": partial(fail, NotHere("no GPU")),
        "z": partial(fail, ValueError("two\nlines")),
    }
    assert list_lines([attempt("attention", "A", name, check) for name, check in checks.items()]) == [
        "FAILED   attention A  1 of 3  x 1e-7",
        "         skipped: y: no GPU",
        "         FAILED: z: ValueError: two lines",
    ]
