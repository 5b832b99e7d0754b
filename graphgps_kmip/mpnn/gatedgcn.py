"""GatedGCN with edge features (Bresson and Laurent 2017; the form of k-MIP thesis section 2.5)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.nn import BatchNorm
from torch_geometric.utils import scatter


class GatedGCN(nn.Module):
    r"""Edge-gated graph convolution that updates nodes and edges, with residuals inside.

    .. math::
        g_{ij} &= C e_{ij} + D x_i + E x_j, \qquad
        \eta_{ij} = \sigma(g_{ij}) / (\textstyle\sum_{j'} \sigma(g_{ij'}) + 10^{-6}) \\
        x_i' &= x_i + \mathrm{drop}(\mathrm{act}(\mathrm{BN}(A x_i + \textstyle\sum_j \eta_{ij} \odot B x_j))) \\
        e_{ij}' &= e_{ij} + \mathrm{drop}(\mathrm{act}(\mathrm{BN}(g_{ij})))

    where j runs over the in-neighbours of i. All five linear maps have biases.

    Args:
        dim: width C of nodes and edges.
        dropout: probability, on both updates.
        act: builds the activation.
        residual: add ``x`` to the node update. Off in the public k-MIP code (methods: "three public codes differ").
        edge_residual: add ``edge_attr`` to the edge update.

    Shapes:
        x (N, C), edge_index (2, E) as (source j, target i), edge_attr (E, C) -> (N, C), (E, C).

    Raises:
        ValueError: edge_attr is None; the gate needs edge features.
    """

    internal_residual = True

    def __init__(
        self,
        dim: int,
        dropout: float = 0.0,
        act: Callable[[], nn.Module] = nn.ReLU,
        *,
        residual: bool = True,
        edge_residual: bool = True,
    ) -> None:
        super().__init__()
        self.A, self.B, self.C, self.D, self.E = (nn.Linear(dim, dim) for _ in range(5))
        # A batch may hold one node, or one edge or none: then the running statistics serve.
        self.node_norm, self.edge_norm = (BatchNorm(dim, allow_single_element=True) for _ in range(2))
        self.act, self.dropout = act(), nn.Dropout(dropout)
        self.residual, self.edge_residual = residual, edge_residual

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the updated node and edge features."""
        if edge_attr is None:
            raise ValueError(
                "GatedGCN needs edge features, and this data has none: "
                "set dataset.edge_encoder True and dataset.edge_encoder_name DummyEdge (one learned vector)"
            )
        source, target = edge_index
        gate = self.C(edge_attr) + self.D(x).index_select(0, target) + self.E(x).index_select(0, source)
        sigma = torch.sigmoid(gate)
        message = sigma * self.B(x).index_select(0, source)
        total = scatter(torch.cat([message, sigma], dim=1), target, dim=0, dim_size=x.size(0))  # (N, 2C), one pass
        weighted, normaliser = total.chunk(2, dim=1)
        x_new = self._update(self.A(x) + weighted / (normaliser + 1e-6), self.node_norm)
        edge_new = self._update(gate, self.edge_norm)
        return (x + x_new if self.residual else x_new), (edge_attr + edge_new if self.edge_residual else edge_new)

    def _update(self, value: Tensor, norm: nn.Module) -> Tensor:
        return self.dropout(self.act(norm(value)))
