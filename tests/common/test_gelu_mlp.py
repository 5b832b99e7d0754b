"""MLP with GELU: values, gradients and names of the plain sequence of layers, and what it keeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.common.gelu_mlp import GELUMLP


def layers(act: nn.Module, bias: bool = True) -> list[nn.Module]:
    torch.manual_seed(0)
    linears = [nn.Linear(*sizes, bias=bias).double() for sizes in ((3, 5), (5, 4), (4, 2))]
    return [linears[0], act, linears[1], act, linears[2]]


def stored(module: nn.Module, x: Tensor) -> int:
    """Numbers kept for the backward pass, parameters and input aside."""
    found, given = {}, {one.data_ptr() for one in (x, *module.parameters())}

    def keep(tensor: Tensor) -> Tensor:
        found.update({} if tensor.data_ptr() in given else {tensor.data_ptr(): tensor.numel()})
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(x)
    return sum(found.values())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("act", [nn.GELU(), nn.GELU("tanh"), nn.ReLU()], ids=["gelu", "tanh", "relu"])
@pytest.mark.parametrize("start", [0, 1])
def test_values_and_gradients_are_those_of_the_plain_sequence(act: nn.Module, bias: bool, start: int) -> None:
    parts, found = layers(act, bias)[start:], []
    x = torch.randn(7, 5 if start else 3, dtype=torch.float64, requires_grad=True)
    for module in (GELUMLP(*parts), nn.Sequential(*parts)):
        y = module(x)
        found.append((y, *torch.autograd.grad(y.pow(3).sum(), [x, *module.parameters()])))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_names_of_parameters_and_slices_are_those_of_a_sequence() -> None:
    module = GELUMLP(*layers(nn.GELU()))
    assert list(module.state_dict()) == list(nn.Sequential(*layers(nn.GELU())).state_dict())
    assert type(module[1:]) is GELUMLP


def test_only_inputs_of_activations_are_kept() -> None:
    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    assert stored(GELUMLP(*layers(nn.GELU())), x) == 7 * (5 + 4)
    assert stored(nn.Sequential(*layers(nn.GELU())), x) == 2 * 7 * (5 + 4)


def test_autocast_has_the_types_and_gradients_of_the_plain_sequence() -> None:
    found = []
    for kind in (GELUMLP, nn.Sequential):
        module, x = kind(*layers(nn.GELU())).float(), torch.ones(7, 3)
        with torch.autocast("cpu", torch.bfloat16):
            y = module(x)
        y.float().sum().backward()
        found.append((y, [one.grad for one in module.parameters()]))
    torch.testing.assert_close(*found, rtol=0, atol=0)
