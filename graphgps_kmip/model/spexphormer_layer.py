"""Layer of the low-width method (Shirzad et al.): attention and a feed-forward network, both normalised behind.

One layer for both stages: the narrow estimator attends along all edges of the graph, the sparse network along edges
drawn for the layer, which lead to fewer nodes than they come from.
"""

from __future__ import annotations

from torch import Tensor, nn

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.model.norms import NORMS


class SpexphormerLayer(nn.Module):
    r"""One layer of the score estimator or of the sparse network.

    .. math::
        Y &= \mathrm{norm}(X + \mathrm{drop}(\mathrm{attention}(X))) \\
        X' &= \mathrm{norm}(Y + \mathrm{drop}(W_2 \, \mathrm{drop}(\mathrm{relu}(W_1 Y))))

    or, without the feed-forward network, :math:`X' = \mathrm{norm}(\mathrm{drop}(\mathrm{relu}(Y)))`.

    Args:
        dim (int): width C.
        attention (Module): ``(x, context, state) -> (x, state)``, or `SampledEdgeAttention`.
        dropout (float, optional): probability, in all three places. (default: 0.0)
        norm (str, optional): a key of `NORMS`; one per graph takes the nodes of a sparse batch for one graph.
            (default: "batch")
        ffn (bool, optional): the layer has the feed-forward network. (default: True)

    Shapes:
        x (N, C), context, states (one) -> (N, C), edge_attr as the context has it, states.

    Raises:
        ValueError: an unknown norm.
    """

    def __init__(
        self, dim: int, attention: nn.Module, dropout: float = 0.0, *, norm: str = "batch", ffn: bool = True
    ) -> None:
        super().__init__()
        self.attention = nn.ModuleList([attention])  # a list, as that of other layers
        self.dropout = nn.Dropout(dropout)
        build = look_up(NORMS, norm, "norm")
        self.attention_norm, self.ffn_norm = nn.ModuleList([build(dim)]), build(dim)
        self.ffn = None
        if ffn:
            self.ffn = nn.Sequential(
                nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim), nn.Dropout(dropout)
            )

    def forward(
        self, x: Tensor, context: GraphContext, states: tuple[object, ...]
    ) -> tuple[Tensor, Tensor | None, tuple[object, ...]]:
        """Return new node features, the edge features and the attention's new state."""
        h, state = self.attention[0](x, context, *states)
        return self._update(x, h, context), context.edge_attr, (state,)

    def along_sampled_edges(self, x: Tensor, edges: Tensor, num_targets: int, types: Tensor) -> Tensor:
        """Return new features of the first ``num_targets`` nodes; arguments as of `SampledEdgeAttention`."""
        h = self.attention[0](x, edges, num_targets, types)
        return self._update(x[:num_targets], h, GraphContext.of(None, h))

    def _update(self, x: Tensor, h: Tensor, context: GraphContext) -> Tensor:
        x = self.attention_norm[0](x + self.dropout(h), context)
        x = self.dropout(x.relu()) if self.ffn is None else x + self.ffn(x)
        return self.ffn_norm(x, context)
