"""Layers that `GPSModel` stacks in place of GPS layers: those of Performer, BigBird, Graphormer, SAN, GRIT, GECO, GNNs.

Each is called ``layer(x, context, states)`` and returns new node features (N, C), edge features and states. ``dim`` is
the width C, ``dropout`` a probability (default 0), and ``act`` builds the activation of the feed-forward network.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch_geometric.nn import BatchNorm

from graphgps_kmip.model.gps import States
from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.ops.dropout import Dropout

Activation = Callable[[], nn.Module]
LayerOutput = tuple[Tensor, Tensor | None, States]


def attend(attention: nn.Module, x: Tensor, context: GraphContext, states: States | None) -> tuple[Tensor, States]:
    """Return the output of an attention with or without a state, and its new state."""
    state = states[0] if states else None
    if state is None:
        return attention(x, context), (None,)
    x, state = attention(x, context, state)
    return x, (state,)


class AttentionLayer(nn.Module):
    """One attention as a whole layer: BigBird's has norms, residuals and a feed-forward network of its own."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = nn.ModuleList([attention])  # a list in each layer: read by GPSModel

    def forward(self, x: Tensor, context: GraphContext, states: States | None = None) -> LayerOutput:
        """Return new node features, the edge features and the attention's new state."""
        x, states = attend(self.attention[0], x, context, states)
        return x, context.edge_attr, states


class TransformerLayer(nn.Module):
    r"""Pre-norm transformer layer (Xiong et al. 2020) with an injected attention.

    .. math::
        H = X + \mathrm{attention}(\mathrm{LN}(X)), \qquad X' = H + \mathrm{FFN}(\mathrm{LN}(H))

    with ``FFN = Linear(4C, C) drop act Linear(C, 4C)`` and LN over the channels of each node. The attention drops its
    own output. There is no norm after the last layer of a stack.
    """

    def __init__(self, dim: int, attention: nn.Module, dropout: float = 0.0, act: Activation = nn.GELU) -> None:
        super().__init__()
        self.attention = nn.ModuleList([attention])
        self.attention_norm, self.ffn_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), act(), Dropout(dropout), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, context: GraphContext, states: States | None = None) -> LayerOutput:
        """Return new node features, the edge features and the attention's new state."""
        h, states = attend(self.attention[0], self.attention_norm(x), context, states)
        x = x + h
        return x + self.ffn(self.ffn_norm(x)), context.edge_attr, states


class GraphormerLayer(nn.Module):
    r"""One layer of Graphormer (Ying et al. 2021, equations 8 and 9): pre-norm, and an MLP of constant width.

    .. math::
        X' &= X + \mathrm{drop}(\mathrm{attention}(\mathrm{LN}(X))) \\
        X'' &= X' + \mathrm{drop}(W_2 \, \mathrm{drop}(\mathrm{gelu}(W_1 \, \mathrm{LN}(X'))))

    with ``mlp_dropout`` inside the MLP. The attention has no state: Graphormer's is `BiasedFullAttention`.
    """

    def __init__(self, dim: int, attention: nn.Module, dropout: float = 0.0, mlp_dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = nn.ModuleList([attention])
        self.attention_norm, self.dropout = nn.LayerNorm(dim), Dropout(dropout)
        maps = nn.Linear(dim, dim), nn.GELU(), Dropout(mlp_dropout), nn.Linear(dim, dim), Dropout(dropout)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), *maps)

    def forward(self, x: Tensor, context: GraphContext, states: States = ()) -> LayerOutput:
        """Return new node features, the edge features and the states."""
        x = x + self.dropout(self.attention[0](self.attention_norm(x), context))
        return x + self.mlp(x), context.edge_attr, states


class PostNormLayer(nn.Module):
    r"""One layer of SAN (Kreuzer et al. 2021, as in GraphGPS) or GRIT (Ma et al. 2023, section 3.3).

    .. math::
        Y &= \mathrm{norm}(X + \mathrm{attention}(X, E)) \\
        X' &= \mathrm{norm}(Y + \mathrm{FFN}(Y))

    with ``FFN = Linear(2C, C) drop act Linear(C, 2C)``. The attention updates features of pairs itself. Differs from
    `GPSLayer`: no dropout after the last linear maps, norms of single nodes.

    Args:
        attention (Module): ``(x, context, state) -> (x, state)``, with dropout and output map of its own.
        norm (callable): builds a norm from C, such as `san_norms` and `row_norms`.
    """

    def __init__(
        self,
        dim: int,
        attention: nn.Module,
        norm: Callable[[int], nn.Module],
        dropout: float = 0.0,
        act: Activation = nn.ReLU,
    ) -> None:
        super().__init__()
        self.attention = nn.ModuleList([attention])
        self.attention_norm, self.ffn_norm = norm(dim), norm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), act(), Dropout(dropout), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor, context: GraphContext, states: States) -> LayerOutput:
        """Return new node features, the edge features and the attention's new state."""
        h, state = self.attention[0](x, context, *states)
        x = self.attention_norm(x + h)
        return self.ffn_norm(x + self.ffn(x)), context.edge_attr, (state,)


def san_norms(dim: int, layer_norm: bool = False, batch_norm: bool = True) -> nn.Sequential:
    """Return SAN's norms of nodes: layer norm over the channels, then batch norm; either, both or none."""
    norms: list[nn.Module] = [nn.LayerNorm(dim)] if layer_norm else []
    return nn.Sequential(*norms, *([BatchNorm(dim, allow_single_element=True)] if batch_norm else []))


class GECOBlock(nn.Module):
    r"""Post-norm block of GECO (Sancak et al., algorithm 2) for networks without message passing.

    .. math::
        H = \mathrm{LN}(\mathrm{GECO}(X, A) + X), \qquad X' = \mathrm{LN}(\mathrm{FFN}(H) + H)

    with ``FFN = drop Linear(C, C) drop act Linear(C, C)``. GECO drops its own output. The paper does not name act.
    """

    def __init__(self, dim: int, geco: nn.Module, dropout: float = 0.0, act: Activation = nn.GELU) -> None:
        super().__init__()
        self.attention = nn.ModuleList([geco])
        self.attention_norm, self.ffn_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, dim), act(), Dropout(dropout), nn.Linear(dim, dim), Dropout(dropout))

    def forward(self, x: Tensor, context: GraphContext, states: States | None = None) -> LayerOutput:
        """Return new node features, the edge features and no states."""
        x = self.attention_norm(self.attention[0](x, context) + x)
        return self.ffn_norm(self.ffn(x) + x), context.edge_attr, states or (None,)


class GNNLayer(nn.Module):
    r"""One layer of the message passing baselines (Dwivedi et al. 2022, Tönshoff et al. 2023).

    .. math:: X' = [X +] \; \mathrm{drop}(\mathrm{act}(\mathrm{MPNN}(X, E)))

    The defaults are those of a message passing module ``conv`` that has all three itself (GatedGCN).
    """

    attention = ()  # read by GPSModel: no attention, no states

    def __init__(
        self, conv: nn.Module, act: Activation = nn.Identity, dropout: float = 0.0, residual: bool = False
    ) -> None:
        super().__init__()
        self.conv, self.act, self.dropout, self.residual = conv, act(), Dropout(dropout), residual

    def forward(self, x: Tensor, context: GraphContext, states: States = ()) -> LayerOutput:
        """Return new node features, new edge features and the states."""
        new, edge_attr = self.conv(x, context.edge_index, context.edge_attr)
        new = self.dropout(self.act(new))
        return (x + new if self.residual else new), edge_attr, states
