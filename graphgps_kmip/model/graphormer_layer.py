"""Graphormer layer and prediction head (Ying et al. 2021, section 3.2), in the form of GraphGPS."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from graphgps_kmip.model.prediction_heads import GraphHead
from graphgps_kmip.ops.context import GraphContext


class GraphormerLayer(nn.Module):
    r"""One layer of Graphormer (Ying et al. 2021, equations 8 and 9): pre-norm, and an MLP of constant width.

    .. math::
        X' &= X + \mathrm{drop}(\mathrm{attention}(\mathrm{LN}(X))) \\
        X'' &= X' + \mathrm{drop}(W_2 \, \mathrm{drop}(\mathrm{gelu}(W_1 \, \mathrm{LN}(X'))))

    A `GPSModel` stacks these layers like GPS layers. Edge features are unchanged.

    Args:
        dim (int): width C.
        attention (Module): ``(x, context) -> x``, without a state: Graphormer's is `BiasedFullAttention`.
        dropout (float, optional): probability after the attention and after the MLP. (default: 0.0)
        mlp_dropout (float, optional): probability inside the MLP. (default: 0.0)

    Shapes:
        x (N, C), context -> (N, C), edge_attr as the context has it, states as given.
    """

    def __init__(self, dim: int, attention: nn.Module, dropout: float = 0.0, mlp_dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = nn.ModuleList([attention])  # a list: read by GPSModel
        self.attention_norm, self.dropout = nn.LayerNorm(dim), nn.Dropout(dropout)
        self.mlp = nn.Sequential(
            nn.LayerNorm(dim),
            nn.Linear(dim, dim),
            nn.GELU(),
            nn.Dropout(mlp_dropout),
            nn.Linear(dim, dim),
            nn.Dropout(dropout),
        )

    def forward(
        self, x: Tensor, context: GraphContext, states: tuple[object, ...] = ()
    ) -> tuple[Tensor, Tensor | None, tuple[object, ...]]:
        """Return new node features, the edge features and the states."""
        x = x + self.dropout(self.attention[0](self.attention_norm(x), context))
        return x + self.mlp(x), context.edge_attr, states


class GraphormerHead(nn.Module):
    r"""One prediction per graph: LayerNorm of each node, pooling, one linear map.

    The pre-norm layers have no norm after the last one; this is it.

    Args:
        dim (int): width C.
        dim_out (int): number of outputs.
        pooling (str, optional): a registered pooling; Graphormer's is ``graph_token``. (default: "graph_token")

    Shapes: batch.x (N, C) -> (B, dim_out); the labels are ``batch.y`` as they are.
    """

    level = "graph"

    def __init__(self, dim: int, dim_out: int, pooling: str = "graph_token") -> None:
        super().__init__()
        head = GraphHead(dim, dim_out, pooling=pooling)
        self.norm, self.pool, self.mlp = nn.LayerNorm(dim), head.pool, head.mlp

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return predictions and labels of the graphs."""
        return self.mlp(self.pool(self.norm(batch.x), batch.batch, batch.num_graphs)), batch.y
