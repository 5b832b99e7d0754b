"""The layer of SAN (Kreuzer et al. 2021): attention, then two linear maps, each with residual and norm."""

from __future__ import annotations

from torch import Tensor, nn
from torch_geometric.nn import BatchNorm

from graphgps_kmip.attention.context import GraphContext


class SANLayer(nn.Module):
    r"""One layer of SAN as GraphGPS has it.

    .. math::
        Y &= \mathrm{norm}([X +] \; \mathrm{attention}(X, E)) \\
        X' &= \mathrm{norm}([Y +] \; \mathrm{FFN}(Y))

    with ``FFN = Linear(2C, C) drop ReLU Linear(C, 2C)``. It is not a `GPSLayer`: nothing is dropped behind the last
    linear maps, and the layer norm is that of single nodes.

    Args:
        dim: width C.
        attention: module ``(x, context, state) -> (x, state)``, with dropout and output map of its own.
        dropout: probability inside the linear maps.
        layer_norm: normalise each node over its channels.
        batch_norm: normalise each channel over all nodes of the batch, behind the layer norm where there are both.
        residual: add X and Y.

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
        self.attention, self.residual = nn.ModuleList([attention]), residual  # a list, as a `GPSModel` wants it
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
