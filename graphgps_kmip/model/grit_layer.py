"""GRIT layer (Ma et al. 2023, section 3.3): attention over pairs of nodes, a feed-forward network, norms after both."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.ops.row_layers import row_norms


class GRITLayer(nn.Module):
    r"""One layer of GRIT (Ma et al. 2023), as its public code has it: post-norm.

    .. math::
        Y &= \mathrm{norm}(X + \alpha_1 \, \mathrm{attention}(X, E)) \\
        X' &= \mathrm{norm}(Y + \alpha_2 \, \mathrm{FFN}(Y))

    with ``FFN = Linear(2C, C) drop act Linear(C, 2C)`` and alpha 1, or learned from 0 (``rezero``). The attention
    updates the pair features itself, with a residual and a norm of its own. Differs from `GPSLayer`: no dropout after
    the last linear maps, and the momentum of the batch norms.

    Args:
        dim (int): width C.
        attention (Module): ``(x, context, state) -> (x, state)``, with dropout and output map of its own.
        dropout (float, optional): probability inside the FFN. (default: 0.0)
        act (callable, optional): builds the activation of the FFN. (default: ReLU)
        layer_norm (bool, optional): normalise each node over its channels. (default: False)
        batch_norm (bool, optional): normalise each channel over all nodes of the batch, after the layer norm if there
            are both. (default: True)
        momentum (float, optional): of the batch norms. (default: 0.1)
        running (bool, optional): running statistics of the batch norms. (default: True)
        rezero (bool, optional): learned alpha. (default: False)

    Shapes:
        x (N, C), context, states (one) -> (N, C), edge_attr (E, C) as given, states.
    """

    def __init__(
        self,
        dim: int,
        attention: nn.Module,
        dropout: float = 0.0,
        act: Callable[[], nn.Module] = nn.ReLU,
        *,
        layer_norm: bool = False,
        batch_norm: bool = True,
        momentum: float = 0.1,
        running: bool = True,
        rezero: bool = False,
    ) -> None:
        super().__init__()
        self.attention = nn.ModuleList([attention])  # a list: read by GPSModel
        self.attention_norm, self.ffn_norm = (
            row_norms(dim, layer_norm=layer_norm, batch_norm=batch_norm, momentum=momentum, running=running)
            for _ in range(2)
        )
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), act(), nn.Dropout(dropout), nn.Linear(2 * dim, dim))
        self.attention_alpha, self.ffn_alpha = (nn.Parameter(torch.zeros(1, 1)) if rezero else None for _ in range(2))

    def forward(
        self, x: Tensor, context: GraphContext, states: tuple[object, ...]
    ) -> tuple[Tensor, Tensor | None, tuple[object, ...]]:
        """Return new node features, the edge features and the attention's new state."""
        h, state = self.attention[0](x, context, *states)
        x = self.attention_norm(x + _scaled(h, self.attention_alpha))
        x = self.ffn_norm(x + _scaled(self.ffn(x), self.ffn_alpha))
        return x, context.edge_attr, (state,)


def _scaled(h: Tensor, alpha: Tensor | None) -> Tensor:
    return h if alpha is None else h * alpha
