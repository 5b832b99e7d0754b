"""Layers without attention: one message passing module, then activation, dropout and residual."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from graphgps_kmip.attention.context import GraphContext


class GNNLayer(nn.Module):
    r"""One layer of the message passing baselines (Dwivedi et al. 2022, Tönshoff et al. 2023).

    .. math:: X' = [X +] \; \mathrm{drop}(\mathrm{act}(\mathrm{MPNN}(X, E)))

    A module that brings some of these itself (GatedGCN all three) is given without them, as the defaults are. A
    `GPSModel` stacks these layers as it does its own.

    Args:
        conv: message passing module ``(x, edge_index, edge_attr) -> (x, edge_attr)``.
        act: builds the activation.
        dropout: probability.
        residual: add X.

    Shapes:
        x (N, C), context -> (N, C), edge_attr (E, C) or None, states as given.
    """

    attention = ()  # read by GPSModel: there is none, so there are no states

    def __init__(
        self,
        conv: nn.Module,
        act: Callable[[], nn.Module] = nn.Identity,
        dropout: float = 0.0,
        residual: bool = False,
    ) -> None:
        super().__init__()
        self.conv, self.act, self.dropout, self.residual = conv, act(), nn.Dropout(dropout), residual

    def forward(
        self, x: Tensor, context: GraphContext, states: tuple[object, ...] = ()
    ) -> tuple[Tensor, Tensor | None, tuple[object, ...]]:
        """Return new node features, new edge features and the states."""
        new, edge_attr = self.conv(context.sources(x), context.edge_index, context.edge_attr)
        new = self.dropout(self.act(new))
        return (x + new if self.residual else new), edge_attr, states
