"""Parts of Polynormer beside its global attention (Deng et al. 2024, equation 7): local layer, head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.common.host_copies import host_copy, remember


class PolynormerLayer(nn.Module):
    r"""Local layer: message passing times a function of the node itself.

    .. math::
        Y = \mathrm{drop}(\mathrm{ReLU}(\mathrm{MPNN}(X, E) + W X)), \qquad
        X' = (1 - \beta) \odot \mathrm{LN}(\mathrm{ReLU}(W_H X) \odot Y) + \beta \odot Y

    A `GPSModel` stacks these layers like GPS layers.

    Args:
        dim (int): width C.
        conv (Module): message passing module ``(x, edge_index, edge_attr) -> (x, edge_attr)``; in the paper GAT.
        gate (Module): ``() -> (C,)``, the numbers :math:`\beta`: `ChannelGate`.
        dropout (float, optional): probability. (default: 0.0)

    Shapes:
        x (N, C), context -> (N, C), edge_attr as given, states as given.
    """

    attention = ()  # read by GPSModel: no attention, no states

    def __init__(self, dim: int, conv: nn.Module, gate: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv, self.gate, self.dropout = conv, gate, nn.Dropout(dropout)
        self.linear, self.factor, self.norm = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.LayerNorm(dim)

    def forward(
        self, x: Tensor, context: GraphContext, states: tuple[object, ...] = ()
    ) -> tuple[Tensor, Tensor | None, tuple[object, ...]]:
        """Return new node features, the edge features and the states."""
        message, _ = self.conv(context.sources(x), context.edge_index, context.edge_attr)
        y = self.dropout(torch.relu(message + self.linear(x)))
        beta = self.gate()
        return (1 - beta) * self.norm(torch.relu(self.factor(x)) * y) + beta * y, context.edge_attr, states


class LocalToGlobalHead(nn.Module):
    """Prediction head of Polynormer: for the local layers in the first epochs, behind global attention from then on.

    In training the epoch decides, where ``batch.epoch`` is set; what it decided last is part of the state, so that
    evaluations and checkpoints have that of their epoch. A new head is global.

    Args:
        dim (int): width C.
        attention (Sequence[Module]): global layers ``(x, context) -> x``, behind a LayerNorm.
        local_head (Module): ``(batch) -> (pred, true)``, for the local layers.
        global_head (Module): the same for the global ones.
        local_epochs (int, optional): epochs of the local head. (default: 0)

    Shapes: batch.x (N, C) -> those of the heads; batch.x is replaced.
    """

    def __init__(
        self,
        dim: int,
        attention: Sequence[nn.Module],
        local_head: nn.Module,
        global_head: nn.Module,
        local_epochs: int = 0,
    ) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(dim), nn.ModuleList(attention)
        self.local_head, self.global_head, self.local_epochs = local_head, global_head, local_epochs
        self.register_buffer("is_global", torch.tensor(True))

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return predictions and labels."""
        context = GraphContext.from_data(batch)
        if self.training and context.epoch is not None:
            is_global = context.epoch >= self.local_epochs
            remember(self.is_global.fill_(is_global), torch.tensor(is_global))
        if not host_copy(self.is_global):
            return self.local_head(batch)
        x = self.norm(batch.x)
        for attention in self.attention:
            x = attention(x, context)
        batch.x = x
        return self.global_head(batch)
