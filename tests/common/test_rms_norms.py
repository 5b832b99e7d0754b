"""AdaRMSNorm equals the recorded one and its plain form, keeps x alone, and the norms of the table are torch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphgps_kmip.common.rms_norms import NORM_LAYERS, AdaRMSNorm
from tests.recorded import check, load

RECORDS = {
    "norm_ada_rms_norm": "ada_rms_norm",
    "norm_ada_rms_norm_4d": "ada_rms_norm",
    "norm_ada_rms_norm_at_init": "ada_rms_norm",
    "norm_rms_norm": "rms_norm",
    "norm_rms_norm_eps1": "rms_norm_eps1",
}


def random_norm(dim: int) -> AdaRMSNorm:
    norm = AdaRMSNorm(dim).double()
    with torch.no_grad():
        norm.alpha.normal_()
        norm.beta.normal_()
    return norm


def rows(*shape: int) -> Tensor:
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[0] = 0  # the epsilons decide
    x[1] *= 1e-4
    return x.requires_grad_()


def plain_ada_rms_norm(x: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    scale = (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    return x * scale * ((alpha * x + beta).square().mean(dim=-1, keepdim=True) + eps).sqrt()


@pytest.mark.parametrize(("file", "name"), RECORDS.items())
def test_outputs_and_gradients_equal_the_recorded_norm(file: str, name: str) -> None:
    record = load(f"F_model/{file}")
    norm = NORM_LAYERS[name](8).double()
    check(norm, lambda inputs: {"y": norm(inputs["x"])}, record, lambda key: key)


def test_derivatives_equal_numerical_ones() -> None:
    norm, x = random_norm(3), rows(4, 3)[1:].detach().requires_grad_()

    def forward(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        return torch.func.functional_call(norm, {"alpha": alpha, "beta": beta}, x)

    inputs = (x, norm.alpha, norm.beta)
    torch.autograd.gradcheck(forward, inputs, eps=1e-9, atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 20, 2**18])
def test_chunks_of_rows_give_the_plain_form(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphgps_kmip.common.rms_norms.CHUNK_NUMBERS", chunk)
    norm, x = random_norm(6), rows(5, 7, 6)
    g = torch.randn(5, 7, 6, dtype=torch.float64)
    inputs = (x, norm.alpha, norm.beta)
    own, plain = norm(x), plain_ada_rms_norm(*inputs)
    torch.testing.assert_close(own, plain, rtol=1e-13, atol=1e-13)
    for found, expected in zip(torch.autograd.grad(own, inputs, g), torch.autograd.grad(plain, inputs, g), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_only_the_input_and_two_numbers_per_row_are_kept() -> None:
    norm, x, kept = AdaRMSNorm(64), torch.randn(1000, 64, requires_grad=True), {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        norm(x)
    assert sum(kept.values()) == 4 * (1000 * 64 + 2 * 1000 + 2 * 64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rows_are_normalised_in_float32(dtype: torch.dtype) -> None:
    norm, x = random_norm(64).float(), (200 * torch.randn(9, 64)).to(dtype).requires_grad_()
    y = norm(x)
    y.float().sum().backward()
    assert y.dtype == x.grad.dtype == dtype
    assert norm.alpha.grad.dtype == torch.float32
    expected = plain_ada_rms_norm(x.detach().float(), norm.alpha, norm.beta).to(dtype)
    torch.testing.assert_close(y, expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0, 4)])
def test_no_rows_are_no_rows_and_give_zero_gradients(shape: tuple[int, ...]) -> None:
    norm, x = random_norm(4), torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    y = norm(x)
    y.sum().backward()
    assert y.shape == x.grad.shape == shape
    assert not norm.alpha.grad.any()
    assert not norm.beta.grad.any()


def test_alpha_one_and_beta_zero_is_the_identity() -> None:
    norm, x = random_norm(8), torch.randn(5, 8, dtype=torch.float64)
    with torch.no_grad():
        norm.alpha.fill_(1.0)
        norm.beta.zero_()
    torch.testing.assert_close(norm(x), x, rtol=1e-12, atol=1e-12)


def test_epsilon_of_each_rms_norm() -> None:
    x = 1e-4 * torch.ones(1, 4, dtype=torch.float64)
    eps = {"rms_norm": 1e-6, "rms_norm_eps0": torch.finfo(torch.float64).eps, "rms_norm_eps1": 1.0}
    for name, value in eps.items():
        expected = x / (1e-8 + value) ** 0.5
        torch.testing.assert_close(NORM_LAYERS[name](4).double()(x), expected, rtol=1e-12, atol=0)


def test_every_norm_keeps_the_shape_of_its_rows() -> None:
    for name, norm in NORM_LAYERS.items():
        assert norm(4)(torch.randn(3, 4)).shape == (3, 4), name
    x = torch.randn(3, 4)
    assert torch.equal(NORM_LAYERS["none"](4)(x), x)
