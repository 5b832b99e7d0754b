"""The self-check that keeps a Triton kernel that is wrong on this card from "auto"."""

from __future__ import annotations

import pytest
import torch

from graphgps_kmip.ops import sparse_attention, triton_check, triton_sparse_attention
from graphgps_kmip.search import triton_search
from tests.search.triton_runs import needs_triton

DEVICE = torch.device("cpu")


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    triton_check.failure.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a card called {device}")


def test_a_check_runs_with_gradients_and_without_autocast_wherever_it_is_called() -> None:
    def check(device: torch.device) -> None:
        x = torch.ones(2, 2, device=device, requires_grad=True)
        (grad,) = torch.autograd.grad((x @ x).sum(), x)
        assert grad.dtype == (x @ x).dtype == torch.float32

    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert triton_check.failure(check, DEVICE) is None


def test_a_check_that_fails_is_a_reason_and_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def wrong(device: torch.device) -> None:
        raise AssertionError(f"scores differ on {device}\nin many lines")

    for _ in range(2):
        reason = triton_check.failure(wrong, DEVICE)
    assert reason == "its self-check failed on a card called cpu: AssertionError: scores differ on cpu"
    assert caplog.messages == [f"Triton kernels of test_triton_check are not used, plain torch is: {reason}"]


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
