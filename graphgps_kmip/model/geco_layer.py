"""GECO block (Sancak et al., algorithm 2): GECO layer and feed-forward network, each with residual and LayerNorm."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from graphgps_kmip.model.gps import States
from graphgps_kmip.ops.context import GraphContext


class GECOBlock(nn.Module):
    r"""Post-norm block of GECO for networks without message passing.

    .. math::
        H = \mathrm{LN}(\mathrm{GECO}(X, A) + X), \qquad X' = \mathrm{LN}(\mathrm{FFN}(H) + H)

    with ``FFN = drop Linear(C, C) drop act Linear(C, C)``; the dropout of GECO's output is its own. A `GPSModel` stacks
    these blocks like GPS layers.

    Args:
        dim (int): width C.
        geco (Module): ``(x, context) -> x``.
        dropout (float, optional): probability inside and behind the FFN. (default: 0.0)
        act (callable, optional): builds the activation, which the paper does not name. (default: GELU)

    Shapes:
        x (N, C), context -> (N, C), edge_attr as given, states as given.
    """

    def __init__(self, dim: int, geco: nn.Module, dropout: float = 0.0, act: Callable[[], nn.Module] = nn.GELU) -> None:
        super().__init__()
        self.attention = nn.ModuleList([geco])
        self.attention_norm, self.ffn_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ffn = nn.Sequential(
            nn.Linear(dim, dim), act(), nn.Dropout(dropout), nn.Linear(dim, dim), nn.Dropout(dropout)
        )

    def forward(
        self, x: Tensor, context: GraphContext, states: States | None = None
    ) -> tuple[Tensor, Tensor | None, States]:
        """Return new node features, the edge features and no states."""
        x = self.attention_norm(self.attention[0](x, context) + x)
        return self.ffn_norm(self.ffn(x) + x), context.edge_attr, states or (None,)
