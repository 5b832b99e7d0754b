"""Layers on rows: AdaRMSNorm equals the recorded one and its plain form, the MLP keeps less, DropPath drops graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.row_layers import GELUMLP, NORM_LAYERS, AdaRMSNorm, DropPath
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


@pytest.mark.parametrize("chunk", [1, 20, 2**18])
def test_chunks_of_rows_give_the_plain_form(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphgps_kmip.ops.row_layers.CHUNK_NUMBERS", chunk)
    norm, x = random_norm(6), rows(5, 7, 6)
    g = torch.randn(5, 7, 6, dtype=torch.float64)
    inputs = (x, norm.alpha, norm.beta)
    fused, plain = norm(x), plain_ada_rms_norm(*inputs)
    torch.testing.assert_close(fused, plain, rtol=1e-13, atol=1e-13)
    grads = [torch.autograd.grad(y, inputs, g) for y in (fused, plain)]
    torch.testing.assert_close(*grads, rtol=1e-11, atol=1e-11)


def test_only_the_input_and_two_numbers_per_row_are_kept() -> None:
    norm, x = AdaRMSNorm(64), torch.randn(1000, 64, requires_grad=True)
    assert stored(norm, x) == 2 * 1000


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


def test_epsilon_of_each_rms_norm() -> None:
    x = 1e-4 * torch.ones(1, 4, dtype=torch.float64)
    eps = {"rms_norm": 1e-6, "rms_norm_eps0": torch.finfo(torch.float64).eps, "rms_norm_eps1": 1.0}
    for name, value in eps.items():
        expected = x / (1e-8 + value) ** 0.5
        torch.testing.assert_close(NORM_LAYERS[name](4).double()(x), expected, rtol=1e-12, atol=0)


def layers(act: nn.Module, bias: bool = True) -> list[nn.Module]:
    torch.manual_seed(0)
    linears = [nn.Linear(*sizes, bias=bias).double() for sizes in ((3, 5), (5, 4), (4, 2))]
    return [linears[0], act, linears[1], act, linears[2]]


def stored(module: nn.Module, x: Tensor) -> int:
    """Numbers kept for the backward pass, parameters and input aside."""
    sizes, pointers = {}, {tensor.data_ptr() for tensor in (x, *module.parameters())}

    def keep(tensor: Tensor) -> Tensor:
        sizes.update({} if tensor.data_ptr() in pointers else {tensor.data_ptr(): tensor.numel()})
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(x)
    return sum(sizes.values())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("act", [nn.GELU(), nn.GELU("tanh"), nn.ReLU()], ids=["gelu", "tanh", "relu"])
@pytest.mark.parametrize("start", [0, 1])
def test_values_and_gradients_are_those_of_the_plain_sequence(act: nn.Module, bias: bool, start: int) -> None:
    parts, results = layers(act, bias)[start:], []
    x = torch.randn(7, 5 if start else 3, dtype=torch.float64, requires_grad=True)
    for module in (GELUMLP(*parts), nn.Sequential(*parts)):
        y = module(x)
        results.append((y, *torch.autograd.grad(y.pow(3).sum(), [x, *module.parameters()])))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def test_names_of_parameters_and_slices_are_those_of_a_sequence() -> None:
    module = GELUMLP(*layers(nn.GELU()))
    assert list(module.state_dict()) == list(nn.Sequential(*layers(nn.GELU())).state_dict())
    assert type(module[1:]) is GELUMLP


def test_only_inputs_of_activations_are_kept() -> None:
    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    assert stored(GELUMLP(*layers(nn.GELU())), x) == 7 * (5 + 4)
    assert stored(nn.Sequential(*layers(nn.GELU())), x) == 2 * 7 * (5 + 4)


def test_autocast_has_the_types_and_gradients_of_the_plain_sequence() -> None:
    results = []
    for kind in (GELUMLP, nn.Sequential):
        module, x = kind(*layers(nn.GELU())).float(), torch.ones(7, 3)
        with torch.autocast("cpu", torch.bfloat16):
            y = module(x)
        y.float().sum().backward()
        results.append((y, [parameter.grad for parameter in module.parameters()]))
    torch.testing.assert_close(*results, rtol=0, atol=0)


SIZES = torch.tensor([3, 0, 1, 5] * 500)
PTR = torch.cat([torch.zeros(1, dtype=torch.long), SIZES.cumsum(0)])
X = torch.ones(int(PTR[-1]), 2, dtype=torch.float64)


def test_all_rows_of_a_graph_share_one_draw_with_the_given_probability() -> None:
    torch.manual_seed(0)
    y = DropPath(0.3).train()(X, PTR)
    firsts = y[PTR[:-1][SIZES > 0], 0]
    assert set(firsts.tolist()) == {0.0, 1 / 0.7}
    assert torch.equal(y, firsts.repeat_interleave(SIZES[SIZES > 0])[:, None].expand(-1, 2))
    share = float((firsts == 0).double().mean())
    assert abs(share - 0.3) < 4 * (0.3 * 0.7 / 1500) ** 0.5  # four standard deviations of 1500 draws


def test_each_call_draws_anew_and_the_seed_repeats_it() -> None:
    drop = DropPath(0.5)
    torch.manual_seed(1)
    first, second = drop(X, PTR), drop(X, PTR)
    torch.manual_seed(1)
    assert torch.equal(first, drop(X, PTR))
    assert not torch.equal(first, second)


def test_without_boundaries_each_row_is_a_graph() -> None:
    torch.manual_seed(0)
    y = DropPath(0.5)(torch.ones(1000, 3))
    dropped = (y == 0).any(dim=1)
    assert 400 < int(dropped.sum()) < 600
    assert torch.equal(dropped, (y == 0).all(dim=1))


def test_eval_mode_and_rate_zero_are_the_identity() -> None:
    assert torch.equal(DropPath(0.9).eval()(X, PTR), X)
    assert torch.equal(DropPath(0.0).train()(X, PTR), X)


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_that_drops_everything_is_refused(rate: float) -> None:
    with pytest.raises(InputError, match="drop_path"):
        DropPath(rate)
