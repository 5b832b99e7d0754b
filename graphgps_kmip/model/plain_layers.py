"""Plain layers beside GPS: transformer layer, message passing (GNN) layer, bare attention."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from graphgps_kmip.model.gps import States
from graphgps_kmip.ops.context import GraphContext


class AttentionLayer(nn.Module):
    """One attention as a whole layer: BigBird's, which has norms, residuals and a feed-forward network of its own.

    A `GPSModel` stacks these layers like GPS layers.

    Args:
        attention (Module): ``(x, context) -> x``, or with a state (see `GPSModel`).

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
    attention's output is its own. There is no norm after the last layer of a stack.

    Args:
        dim (int): width C.
        attention (Module): ``(x, context) -> x``, or with a state (see `GPSModel`).
        dropout (float, optional): probability inside the FFN. (default: 0.0)
        act (callable, optional): builds the activation of the FFN. (default: GELU)

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


class GNNLayer(nn.Module):
    r"""One layer of the message passing baselines (Dwivedi et al. 2022, Tönshoff et al. 2023).

    .. math:: X' = [X +] \; \mathrm{drop}(\mathrm{act}(\mathrm{MPNN}(X, E)))

    The defaults are those of a module that has all three itself (GatedGCN). A `GPSModel` stacks these layers like GPS
    layers.

    Args:
        conv (Module): message passing module ``(x, edge_index, edge_attr) -> (x, edge_attr)``.
        act (callable, optional): builds the activation. (default: Identity)
        dropout (float, optional): probability. (default: 0.0)
        residual (bool, optional): add X. (default: False)

    Shapes:
        x (N, C), context -> (N, C), edge_attr (E, C) or None, states as given.
    """

    attention = ()  # read by GPSModel: no attention, no states

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
        new, edge_attr = self.conv(x, context.edge_index, context.edge_attr)
        new = self.dropout(self.act(new))
        return (x + new if self.residual else new), edge_attr, states
