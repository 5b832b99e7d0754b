"""GatedGCN with edge features (Bresson and Laurent 2017; the form of k-MIP thesis section 2.5)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch_geometric.nn import BatchNorm

from graphgps_kmip.mpnn import gated_cpu
from graphgps_kmip.mpnn.edge_gate import DistanceGate, factor_of
from graphgps_kmip.mpnn.gated_sum import gated_sum
from graphgps_kmip.mpnn.message_passing import Nodes, ends, needed


class GatedGCN(nn.Module):
    r"""Edge-gated graph convolution that updates nodes and edges, with residuals inside.

    .. math::
        g_{ij} &= C e_{ij} + D x_i + E x_j, \qquad w_{ij} = \sigma(g_{ij}) \, r_{ij}, \qquad
        \eta_{ij} = w_{ij} / (\textstyle\sum_{j'} w_{ij'} + 10^{-6}) \\
        x_i' &= x_i + \mathrm{drop}(\mathrm{act}(\mathrm{BN}(A x_i + \textstyle\sum_j \eta_{ij} \odot B x_j))) \\
        e_{ij}' &= e_{ij} + \mathrm{drop}(\mathrm{act}(\mathrm{BN}(g_{ij})))

    where j runs over the in-neighbours of i, and r is 1, or the gate of EquivStableLapPE (see `DistanceGate`). All five
    linear maps have biases. Of an edge, the backward keeps the gate g and what the edge update needs (see `gated_sum`).

    Args:
        dim: width C of nodes and edges.
        dropout: probability, on both updates.
        act: builds the activation.
        residual: add ``x`` to the node update. Off in the public k-MIP code (methods: "three public codes differ").
        edge_residual: add ``edge_attr`` to the edge update.
        equivstable_pe: gate by the distance of the ends in ``encoding``.

    Shapes:
        x (N, C) or a pair (M, C), (N, C), edge_index (2, E) as (source j, target i), edge_attr (E, C), encoding like x
        -> (N, C), (E, C).

    Raises:
        ValueError: edge_attr is None, the gate needs edge features; encoding is None or not as ``equivstable_pe`` says.
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
        equivstable_pe: bool = False,
    ) -> None:
        super().__init__()
        self.A, self.B, self.C, self.D, self.E = (nn.Linear(dim, dim) for _ in range(5))
        # A batch may hold one node, or one edge or none: then the running statistics serve.
        self.node_norm, self.edge_norm = (BatchNorm(dim, allow_single_element=True) for _ in range(2))
        self.gate = DistanceGate(dim, act) if equivstable_pe else None
        self.act, self.dropout = act(), nn.Dropout(dropout)
        self.residual, self.edge_residual = residual, edge_residual

    def forward(
        self, x: Nodes, edge_index: Tensor, edge_attr: Tensor | None, encoding: Nodes | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the updated node and edge features."""
        edge_attr, (x_source, x), (source, target) = needed("GatedGCN", edge_attr), ends(x), edge_index
        factor = factor_of("GatedGCN", self.gate, encoding, edge_index)
        mean, gate = self._gated(x, x_source, self.C(edge_attr), factor, source, target)
        x_new, edge_new = self._update(mean, self.node_norm), self._update(gate, self.edge_norm)
        return (x + x_new if self.residual else x_new), (edge_attr + edge_new if self.edge_residual else edge_new)

    def _gated(
        self, x: Tensor, x_source: Tensor, edge: Tensor, factor: Tensor | None, source: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ``A x + mean`` of the nodes (N, C) and the gates g of the edges (E, C), in the memory of ``edge``."""
        if gated_cpu.can_run(edge, x, x_source):
            own, other = _side_by_side(x, self.A, self.D), _side_by_side(x_source, self.B, self.E)
            return gated_cpu.gated_mean(own, other, edge, factor, source, target)
        gate = edge
        gate += self.D(x).index_select(0, target)  # in place: (E, C) is what a layer has little room for
        gate += self.E(x_source).index_select(0, source)
        weighted, normaliser = gated_sum(gate, self.B(x_source), factor, source, target, x.size(0))
        return self.A(x) + weighted / (normaliser + 1e-6), gate

    def _update(self, value: Tensor, norm: nn.Module) -> Tensor:
        return self.dropout(self.act(norm(value)))


def _side_by_side(x: Tensor, first: nn.Linear, second: nn.Linear) -> Tensor:
    """Apply two linear maps in one product: x (N, C) -> (N, 2 C)."""
    return linear(x, torch.cat([first.weight, second.weight]), torch.cat([first.bias, second.bias]))
