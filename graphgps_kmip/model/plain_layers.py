"""Layers of whole transformers: an attention over the nodes, without message passing; edges are only passed on."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.model.gps import States


class AttentionLayer(nn.Module):
    """A layer that is one attention and nothing else: one with norms, residuals and a feed-forward network inside.

    BigBird's is. A `GPSModel` stacks these layers as it does its own.

    Args:
        attention: ``(x, context) -> x``, or with a state (see `GPSModel`).

    Shapes:
        x (N, C), context, states -> (N, C), edge_attr as given, states.
    """

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = nn.ModuleList([attention])

    def forward(
        self, x: Tensor, context: GraphContext, states: States | None = None
    ) -> tuple[Tensor, Tensor | None, States]:
        """Return new node features, the edge features and the attention's new state."""
        x, states = _attended(self.attention[0], x, context, states)
        return x, context.edge_attr, states


class TransformerLayer(nn.Module):
    r"""Pre-norm transformer layer (Xiong et al. 2020) with an injected attention.

    .. math::
        H = X + \mathrm{attention}(\mathrm{LN}(X)), \qquad X' = H + \mathrm{FFN}(\mathrm{LN}(H))

    with ``FFN = Linear(4C, C) drop act Linear(C, 4C)`` and LN over the channels of each node. The dropout of the
    attention's output is its own. There is no norm behind the last layer of a stack.

    Args:
        dim: width C.
        attention: ``(x, context) -> x``, or with a state (see `GPSModel`).
        dropout: probability inside the FFN.
        act: builds the activation of the FFN.

    Shapes:
        x (N, C), context, states -> (N, C), edge_attr as given, states.
    """

    def __init__(
        self, dim: int, attention: nn.Module, dropout: float = 0.0, act: Callable[[], nn.Module] = nn.GELU
    ) -> None:
        super().__init__()
        self.attention = nn.ModuleList([attention])
        self.attention_norm, self.ffn_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), act(), nn.Dropout(dropout), nn.Linear(4 * dim, dim))

    def forward(
        self, x: Tensor, context: GraphContext, states: States | None = None
    ) -> tuple[Tensor, Tensor | None, States]:
        """Return new node features, the edge features and the attention's new state."""
        h, states = _attended(self.attention[0], self.attention_norm(x), context, states)
        x = x + h
        return x + self.ffn(self.ffn_norm(x)), context.edge_attr, states


def _attended(attention: nn.Module, x: Tensor, context: GraphContext, states: States | None) -> tuple[Tensor, States]:
    state = states[0] if states else None
    if state is None:
        return attention(x, context), (None,)
    x, state = attention(x, context, state)
    return x, (state,)
