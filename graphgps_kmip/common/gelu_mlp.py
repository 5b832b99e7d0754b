"""MLP with GELU that keeps less for its backward pass: the inputs of activations, not their values.

The values are computed again, which costs one GELU in place of two numbers stored for each hidden channel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import gelu, linear

from graphgps_kmip.common.gradients import refuse_second_derivative


class GELUMLP(nn.Sequential):
    """A sequence of layers in which each exact GELU and the linear layer behind it are one operator.

    Values, gradients and names of parameters are those of ``nn.Sequential``. The operator is not used, and everything
    kept, for other activations and under autocast.

    Args:
        *layers (Module): as for ``nn.Sequential``: linear layers and activations, one behind the other.

    Shapes: x (P, C) -> (P, D).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows behind the last layer."""
        layers, number = list(self), 0
        while number < len(layers):
            pair = layers[number : number + 2]
            if _fits(pair, x):
                x = _GELULinear.apply(x, pair[1].weight, pair[1].bias)
                number += 2
            else:
                x = layers[number](x)
                number += 1
        return x


def _fits(pair: list[nn.Module], x: Tensor) -> bool:
    if len(pair) < 2 or x.dim() != 2 or torch.is_autocast_enabled(x.device.type):
        return False
    return type(pair[0]) is nn.GELU and pair[0].approximate == "none" and type(pair[1]) is nn.Linear


class _GELULinear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Shapes: x (P, C), weight (D, C), bias (D,) -> (P, D)."""
        ctx.save_for_backward(x, weight, bias)
        return linear(gelu(x), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the activations again."""
        x, weight, bias = ctx.saved_tensors
        refuse_second_derivative("MLP with GELU")
        need_x, need_weight, need_bias = ctx.needs_input_grad
        return (
            torch.ops.aten.gelu_backward(grad @ weight, x) if need_x else None,
            grad.T @ gelu(x) if need_weight else None,
            grad.sum(0) if need_bias else None,
        )
