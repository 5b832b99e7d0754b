"""SAN layer and prediction head (Kreuzer et al. 2021), in the form of GraphGPS."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch_geometric.nn import BatchNorm

from graphgps_kmip.errors import InputError
from graphgps_kmip.model.prediction_heads import GraphHead
from graphgps_kmip.ops.context import GraphContext


class SANLayer(nn.Module):
    r"""One layer of SAN as GraphGPS has it.

    .. math::
        Y &= \mathrm{norm}([X +] \; \mathrm{attention}(X, E)) \\
        X' &= \mathrm{norm}([Y +] \; \mathrm{FFN}(Y))

    with ``FFN = Linear(2C, C) drop ReLU Linear(C, 2C)``. Differs from `GPSLayer`: no dropout after the last
    linear maps, and the layer norm is per node.

    Args:
        dim (int): width C.
        attention (Module): module ``(x, context, state) -> (x, state)``, with dropout and output map of its own.
        dropout (float, optional): probability inside the linear maps. (default: 0.0)
        layer_norm (bool, optional): normalise each node over its channels. (default: False)
        batch_norm (bool, optional): normalise each channel over all nodes of the batch, after the layer norm if there
            are both. (default: True)
        residual (bool, optional): add X and Y. (default: True)

    Shapes:
        x (N, C), context, states (one) -> (N, C), edge_attr (E, C) as given, states.
    """

    def __init__(
        self,
        dim: int,
        attention: nn.Module,
        dropout: float = 0.0,
        *,
        layer_norm: bool = False,
        batch_norm: bool = True,
        residual: bool = True,
    ) -> None:
        super().__init__()
        self.attention, self.residual = nn.ModuleList([attention]), residual  # a list: read by GPSModel
        self.attention_norm, self.ffn_norm = (_norms(dim, layer_norm, batch_norm) for _ in range(2))
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim))

    def forward(
        self, x: Tensor, context: GraphContext, states: tuple[object, ...]
    ) -> tuple[Tensor, Tensor | None, tuple[object, ...]]:
        """Return new node features, the edge features and the attention's new state."""
        h, state = self.attention[0](x, context, *states)
        x = self.attention_norm(self._added(x, h))
        x = self.ffn_norm(self._added(x, self.ffn(x)))
        return x, context.edge_attr, (state,)

    def _added(self, x: Tensor, h: Tensor) -> Tensor:
        return x + h if self.residual else h


def _norms(dim: int, layer_norm: bool, batch_norm: bool) -> nn.Sequential:
    norms: list[nn.Module] = [nn.LayerNorm(dim)] if layer_norm else []
    return nn.Sequential(*norms, *([BatchNorm(dim, allow_single_element=True)] if batch_norm else []))


def san_graph_head(
    dim: int, dim_out: int, pooling: str = "mean", halvings: int = 2, act: Callable[[], nn.Module] = nn.ReLU
) -> GraphHead:
    """Return a head that pools the nodes of a graph, then applies `shrinking_mlp`.

    Args:
        dim (int): width C.
        dim_out (int): number of outputs.
        pooling (str, optional): a registered pooling. (default: "mean")
        halvings (int, optional): linear maps before the last one. (default: 2)
        act (callable, optional): builds the activation between the linear maps. (default: ReLU)

    Shapes: batch.x (N, C) -> (B, dim_out).
    """
    head = GraphHead(dim, dim_out, pooling=pooling)
    head.mlp = shrinking_mlp(dim, dim_out, halvings, act)
    return head


def shrinking_mlp(dim: int, dim_out: int, halvings: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Biased linear maps ``C -> C // 2 -> C // 4 ... -> dim_out`` with an activation between them.

    Raises:
        ValueError: the width is less than 2^halvings.
    """
    widths = [dim // 2**i for i in range(halvings + 1)]
    if not widths[-1]:
        raise InputError(
            f"the head san_graph halves the width {halvings} times, and gnn.dim_inner is {dim}: set it to "
            f"{2**halvings} or more"
        )
    hidden = [[nn.Linear(wide, narrow), act()] for wide, narrow in zip(widths, widths[1:], strict=False)]
    return nn.Sequential(*(module for pair in hidden for module in pair), nn.Linear(widths[-1], dim_out))
