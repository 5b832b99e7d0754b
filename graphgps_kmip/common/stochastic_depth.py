"""Stochastic depth (Huang et al. 2016): in training whole graphs skip a residual branch, each by a draw of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphgps_kmip.errors import InputError


class DropPath(nn.Module):
    r"""Set a residual branch to zero for random graphs of the mini-batch: one draw per graph and call.

    .. math:: y_n = b_{g(n)} \, x_n / (1 - p), \quad b_g \sim \mathrm{Bernoulli}(1 - p)

    In eval mode, and with p = 0, it is the identity. Gradients flow to the rows of the graphs that are kept.

    Args:
        rate (float, optional): probability p of a graph to be dropped, below 1. (default: 0.0)
        scale (bool, optional): divide by 1 - p, so that the mean of y is x. (default: True)

    Shapes: x (M, ...), ptr (B+1,) -> (M, ...).

    Raises:
        ValueError: the rate is not in [0, 1).
    """

    def __init__(self, rate: float = 0.0, scale: bool = True) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise InputError(f"the rate of stochastic depth must be at least 0 and below 1, got {rate}: set drop_path")
        self.rate, self.scale = rate, scale

    def forward(self, x: Tensor, ptr: Tensor | None = None) -> Tensor:
        """Return the rows, those of dropped graphs as zeros.

        Args:
            x (Tensor): rows, sorted by graph.
            ptr (Tensor, optional): first row of each graph, and their number at the end; None: each row is a graph of
                its own, as class tokens are. (default: None)
        """
        if not self.training or self.rate == 0:
            return x
        graphs = len(x) if ptr is None else ptr.numel() - 1
        kept = torch.rand(graphs, device=x.device) >= self.rate
        factor = kept.to(x.dtype).div_(1 - self.rate if self.scale else 1.0)
        if ptr is not None:
            factor = factor.repeat_interleave(ptr.diff(), output_size=len(x))
        return x * factor.view(-1, *[1] * (x.dim() - 1))

    def extra_repr(self) -> str:
        """Return the settings, as printed in a model."""
        return f"rate={self.rate}, scale={self.scale}"
