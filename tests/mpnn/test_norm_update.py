"""Batch norm with ReLU and residual by the C kernel against torch's: values, gradients, running statistics."""

from __future__ import annotations

import copy
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import BatchNorm

from graphgps_kmip.mpnn.norm_update import KERNEL, kernel_can_run, norm_update
from graphgps_kmip.native import unavailable_reason, without_kernels
from graphgps_kmip.train.distributed import SharedBatchNorm
from tests.native.vector_units import VECTOR_UNITS
from tests.pairwise import pairwise

pytestmark = pytest.mark.skipif(unavailable_reason(KERNEL) is not None, reason="no C compiler")


def example(rows: int, dim: int, dtype: torch.dtype = torch.float64, training: bool = True) -> tuple:
    """Rows far from zero, a residual, and a norm that has seen another batch."""
    norm = BatchNorm(dim, allow_single_element=True).to(dtype)
    with torch.no_grad():
        norm.module.weight.normal_()
        norm.module.bias.normal_()
        norm(torch.randn(9, dim, dtype=dtype))
    x, residual = (torch.randn(rows, dim, dtype=dtype).add_(shift).requires_grad_() for shift in (30.0, 0.0))
    return norm.train(training), x, residual


def results(norm: BatchNorm, x: Tensor, residual: Tensor | None, relu: bool) -> list[Tensor]:
    """Return output, gradients and running statistics."""
    norm = copy.deepcopy(norm)
    out = norm_update(x, norm, relu, residual)
    inputs = [tensor for tensor in (x, residual, *norm.parameters()) if tensor is not None]
    grads = torch.autograd.grad((out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum(), inputs)
    return [out, *grads, *norm.buffers()]


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("instruction_set", VECTOR_UNITS, indirect=True)
@pytest.mark.parametrize(
    ("size", "training", "parts"),
    pairwise([(2, 1), (63, 3), (64, 16), (65, 37), (700, 8)], [True, False], list(product([True, False], repeat=2))),
)
def test_results_equal_those_of_torch(size: tuple[int, int], training: bool, parts: tuple[bool, bool]) -> None:
    (rows, dim), (relu, has_residual) = size, parts
    norm, x, residual = example(rows, dim, training=training)
    residual = residual if has_residual else None
    assert kernel_can_run(x, norm, residual)
    found = results(norm, x, residual, relu)
    with without_kernels():
        expected = results(norm, x, residual, relu)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_float32_is_as_near_to_float64_as_torch_is() -> None:
    norm, x, residual = example(900, 20)
    exact = results(norm, x, residual, True)
    given = (norm.float(), x.detach().float().requires_grad_(), residual.detach().float().requires_grad_(), True)
    found = results(*given)
    with without_kernels():
        by_torch = results(*given)
    for ours, theirs, value in zip(found[:-1], by_torch[:-1], exact[:-1], strict=True):  # without the count
        assert (ours - value).norm() <= 2 * (theirs - value).norm() + 1e-6 * value.norm()


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    norm, x, residual = example(8000, 40, torch.float32)
    runs = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        runs.append(results(norm, x, residual, True))
    assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))


@pytest.mark.parametrize("training", [True, False])
def test_second_derivatives_equal_finite_differences(training: bool) -> None:
    norm, x, residual = example(6, 3, training=training)
    x = (x.detach() - 30).requires_grad_()

    def output(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        given = {"module.weight": weight, "module.bias": bias}
        own = copy.deepcopy(norm)
        for name, value in given.items():
            delattr(own.module, name.removeprefix("module."))
            setattr(own.module, name.removeprefix("module."), value)
        return norm_update(x, own, True, residual)

    inputs = (x, residual, *(parameter.detach().clone().requires_grad_() for parameter in norm.parameters()))
    assert torch.autograd.gradcheck(output, inputs)
    assert torch.autograd.gradgradcheck(output, inputs)


def test_a_number_that_is_none_stays_visible() -> None:
    norm, x, residual = example(100, 4)
    with torch.no_grad():
        x[3, 2] = torch.nan
    out = norm_update(x, norm, True, residual)
    assert out[:, 2].isnan().all()
    assert out[:, [0, 1, 3]].isfinite().all()


def test_other_norms_rows_and_dtypes_are_left_to_torch() -> None:
    norm, x, _ = example(5, 4)
    assert not kernel_can_run(x[:1], norm, None)
    assert not kernel_can_run(x, nn.Identity(), None)
    assert not kernel_can_run(x.bfloat16(), norm, None)
    assert not kernel_can_run(x.float(), norm, None)
    assert not kernel_can_run(x, norm, x[:, :1])
    assert not kernel_can_run(x[:, :3], norm, None)
    norm.module = SharedBatchNorm(4)
    assert not kernel_can_run(x.float(), norm, None)
    single = BatchNorm(4, allow_single_element=True).double()
    torch.testing.assert_close(norm_update(x[:1], single, True, x[:1]), x[:1] + x[:1].relu() / (1 + 1e-5) ** 0.5)
