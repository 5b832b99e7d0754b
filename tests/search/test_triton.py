"""The Triton backend: its kernel in another process, its limits and self-check, realistic sizes on a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from graphgps_kmip.ops import sparse_attention, triton_check, triton_sparse_attention
from graphgps_kmip.registry import entries
from graphgps_kmip.search import SearchProblem, triton_search
from graphgps_kmip.search.triton_search import TILINGS, Tiling, search_triton, triton_not_supported_reasons
from tests.processes import python
from tests.search.problems import pointer
from tests.search.triton_runs import INTERPRETING, assembly_for, needs_triton

CASES = ("tests/search/triton_cases.py", "tests/attention/triton_sparse_attention_cases.py")


def problem(num_rows: int = 6, dim: int = 2, num_keys: int = 2, num_heads: int = 1) -> SearchProblem:
    x = torch.ones(num_heads, num_rows, dim)
    return SearchProblem.of(x, x, None, None, num_keys)


# In the interpreter, the cases without the mark thorough by default; on a GPU all.
@needs_triton
@pytest.mark.parametrize(
    ("interpret", "marks"),
    [
        (True, "not thorough"),
        pytest.param(True, "thorough", marks=pytest.mark.slow),
        pytest.param(False, "not slow", marks=pytest.mark.cuda),
    ],
)
def test_the_kernels_of_search_and_gather_pass_their_cases_in_another_process(interpret: bool, marks: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": str(int(interpret))}
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, *CASES, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert not interpret or "skipped" not in done.stdout


@needs_triton
@pytest.mark.skipif(INTERPRETING, reason="an interpreted kernel cannot be compiled")
def test_the_kernel_compiles_for_hopper_to_the_instruction_meant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from graphgps_kmip.search.triton_search_kernels import search_kernel

    constants = {"D": 10, "WIDTH": 16, "SLOTS": 16, "QUERIES": 64, "KEYS": 64, "STEP": 2}
    code = assembly_for(90, search_kernel, constants, "fp32", "fp16")
    assert "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16" in code


@needs_triton
@pytest.mark.skipif(INTERPRETING, reason="an interpreted kernel cannot be compiled")
@pytest.mark.parametrize(
    "tiling", [TILINGS[0], *(pytest.param(tiling, marks=pytest.mark.slow) for tiling in TILINGS[1:])]
)
@pytest.mark.parametrize("capability", [100, *(pytest.param(card, marks=pytest.mark.slow) for card in (80, 90, 120))])
def test_each_tiling_compiles_for_each_card(
    capability: int, tiling: Tiling, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from graphgps_kmip.search.triton_search_kernels import search_kernel

    constants = {"D": 10, "WIDTH": 16, "SLOTS": 16}
    for number in ({}, {"num_graphs": 1}):  # 1 is a constant to Triton
        code = assembly_for(capability, search_kernel, constants | tiling.sizes | number, low="fp16", **tiling.options)
        assert "mma" in code


@needs_triton
def test_it_says_when_it_is_not_installed_and_runs_on_a_cpu_only_when_interpreted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    (reason,) = triton_not_supported_reasons(problem())
    assert "run on cuda, not on cpu" in reason
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert triton_not_supported_reasons(problem()) == []
    monkeypatch.setattr(triton_search, "is_installed", lambda: False)
    assert triton_not_supported_reasons(problem()) == ["triton is not installed (pip install triton)"]


@needs_triton
@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"num_keys": 129}, "at most 128 keys for each query, not 129"),
        ({"dim": 257}, "1 to 256 dimensions a head, not 257"),
        ({"dim": 0}, "1 to 256 dimensions a head, not 0"),
        ({"num_heads": 65536}, "65535 heads, not 65536"),
    ],
)
def test_it_names_the_limits_of_the_kernel(sizes: dict[str, int], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert reason in "; ".join(triton_not_supported_reasons(problem(**sizes)))


@needs_triton
def test_offsets_beyond_int32_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    x = torch.empty(1).expand(1, 2**27, 10)  # 2^27 rows of one number
    huge = SearchProblem(x, x, pointer([2**27]), pointer([2**27]), 10)
    assert "int32 offsets reach 134217727 nodes" in "; ".join(triton_not_supported_reasons(huge))
    fits = SearchProblem(x[:, 1:], x[:, 1:], pointer([2**27 - 1]), pointer([2**27 - 1]), 10)
    assert triton_not_supported_reasons(fits) == []


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize(("sizes", "dim", "num_keys"), [([20_000], 10, 10), ([300, 0, 4000, 7] * 3, 16, 50)])
def test_on_a_gpu_it_equals_the_full_score_matrix(sizes: list[int], dim: int, num_keys: int) -> None:
    q, k = (torch.randn(2, sum(sizes), dim, device="cuda") for _ in range(2))
    k[:, ::7] = k[:, :1]  # duplicates
    ptr = pointer(sizes).cuda()
    searched = SearchProblem.of(q.double(), k.double(), ptr, ptr, num_keys)
    expected = entries("search_backend")["exact"].component(searched)[1]
    index, score = search_triton(SearchProblem.of(q, k, ptr, ptr, num_keys))
    torch.testing.assert_close(score.double(), expected, rtol=1e-5, atol=1e-4)
    selected = k.double().gather(1, index.clamp(min=0).flatten(1)[..., None].expand(-1, -1, dim))
    products = (q.double()[:, :, None] * selected.unflatten(1, index.shape[1:])).sum(-1)
    torch.testing.assert_close(products[index >= 0], expected[index >= 0], rtol=1e-5, atol=1e-4)
    again = search_triton(SearchProblem.of(q, k, ptr, ptr, num_keys))
    assert torch.equal(again[0], index)
    assert torch.equal(again[1], score)


DEVICE = torch.device("cpu")


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    triton_check.failure.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a card called {device}")


@pytest.mark.usefixtures("forget")
def test_a_check_runs_with_gradients_and_without_autocast_wherever_it_is_called() -> None:
    def check(device: torch.device) -> None:
        x = torch.ones(2, 2, device=device, requires_grad=True)
        (grad,) = torch.autograd.grad((x @ x).sum(), x)
        assert grad.dtype == (x @ x).dtype == torch.float32

    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert triton_check.failure(check, DEVICE) is None


@pytest.mark.usefixtures("forget")
def test_a_check_that_fails_is_a_reason_and_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def wrong(device: torch.device) -> None:
        raise AssertionError(f"scores differ on {device}\nin many lines")

    for _ in range(2):
        reason = triton_check.failure(wrong, DEVICE)
    assert reason == "its self-check failed on a card called cpu: AssertionError: scores differ on cpu"
    assert caplog.messages == [f"Triton kernels of test_triton are not used, plain torch is: {reason}"]


def test_the_check_of_the_search_sees_a_wrong_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_search, "search_triton", triton_search.search_exact)
    triton_search.check_search(DEVICE)
    monkeypatch.setattr(
        triton_search, "search_triton", lambda problem: (None, triton_search.search_exact(problem)[1].roll(1, 1))
    )
    with pytest.raises(AssertionError):
        triton_search.check_search(DEVICE)


def test_the_check_of_the_gather_sees_a_wrong_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, right = sparse_attention.torch_forward, sparse_attention.torch_backward
    monkeypatch.setattr(triton_sparse_attention, "sparse_attention_forward", forward)
    monkeypatch.setattr(triton_sparse_attention, "sparse_attention_backward", right)
    triton_sparse_attention._check(DEVICE)

    def wrong(*args: object) -> tuple[torch.Tensor, ...]:
        grad_q, grad_k, grad_v = right(*args)
        return grad_q, grad_k.roll(1, 0), grad_v

    monkeypatch.setattr(triton_sparse_attention, "sparse_attention_backward", wrong)
    with pytest.raises(AssertionError):
        triton_sparse_attention._check(DEVICE)


@needs_triton
@pytest.mark.cuda
def test_every_check_passes_on_this_card() -> None:
    triton_search.check_search(torch.device("cuda"))
    triton_sparse_attention._check(torch.device("cuda"))
