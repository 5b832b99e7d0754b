"""Normalisation layers of GPS layers: batch norm, layer norm per graph, GraphNorm; all called ``norm(x, context)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch_geometric.nn import BatchNorm, GraphNorm

from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.ops.operators import refuse_second_derivative

EPS = 1e-5  # that of torch_geometric


class GraphLayerNorm(nn.Module):
    r"""torch_geometric's LayerNorm in mode "graph" (Ba et al. 2016, over the nodes of a graph, too).

    .. math::
        y_n = \frac{x_n - \mu_g}{\sqrt{\sigma_g^2 + \epsilon}} \odot w + b

    with mean and biased variance of the C N_g numbers of the graph g of node n. Only x is stored for the backward pass.

    Shapes: x (N, C), batch (N,) -> (N, C).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        """Normalise each of the B graphs separately."""
        return _Normalise.apply(x, self.weight, self.bias, batch, num_graphs)


class _Normalise(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        """Shapes: x (N, C); means and scales (B, 1)."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))

        def average_nodes(values: Tensor, count: Tensor | None = None) -> Tensor:
            sums = values.new_zeros(num_graphs).index_add_(0, batch, values.sum(dim=1))
            return sums if count is None else (sums / count)[:, None]

        ctx.count = average_nodes(torch.ones_like(wide[:, :1])).clamp(min=1) * x.size(1)
        mean = average_nodes(wide, ctx.count)
        centred = wide - mean[batch]
        scale = (average_nodes(centred.square(), ctx.count) + EPS).rsqrt()
        ctx.save_for_backward(x, weight, batch, mean, scale)
        ctx.average_nodes = average_nodes
        return torch.addcmul(bias, centred.mul_(scale[batch]), weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """``dx = s (h - mean(h) - z mean(h z))`` with ``h = w dy`` and z the normalised x."""
        x, weight, batch, mean, scale = ctx.saved_tensors
        refuse_second_derivative("graph layer norm")
        grad = grad.to(mean.dtype)
        normal = x.to(mean.dtype).sub(mean[batch]).mul_(scale[batch])
        grad_weight, grad_bias = (grad * normal).sum(dim=0), grad.sum(dim=0)
        grad = grad * weight
        inner = ctx.average_nodes(grad * normal, ctx.count)
        grad -= ctx.average_nodes(grad, ctx.count)[batch]
        grad = grad.sub_(normal.mul_(inner[batch])).mul_(scale[batch])
        return grad.to(x.dtype), grad_weight.to(weight.dtype), grad_bias.to(weight.dtype), None, None


class PerGraph(nn.Module):
    """A norm ``(x, batch, num_graphs)`` of each graph separately."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, context: GraphContext) -> Tensor:
        """Normalise each graph separately."""
        return self.norm(x, context.batch, context.num_graphs)


class PerBatch(nn.Module):
    """A norm over all nodes of the mini-batch; a batch of one node uses the running statistics."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, context: GraphContext) -> Tensor:  # noqa: ARG002 (one signature for all norms)
        """Normalise over the nodes of all graphs."""
        return self.norm(x)


# The thesis uses "batch"; the k-MIP paper's LRGB rows "layer"; Exphormer's code means "graph" by layer_norm.
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": lambda dim: PerBatch(BatchNorm(dim, allow_single_element=True)),
    "layer": lambda dim: PerGraph(GraphLayerNorm(dim)),
    "graph": lambda dim: PerGraph(GraphNorm(dim)),
    "none": lambda dim: PerBatch(nn.Identity()),  # noqa: ARG005
}
