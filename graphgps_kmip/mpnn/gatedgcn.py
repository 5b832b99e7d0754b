"""GatedGCN with edge features (Bresson and Laurent 2017; the form of k-MIP thesis section 2.5).

The sums over edges of GatedGCN, in memory that does not grow with the number of edges.

The plain form keeps gathered values, sigmoids and messages of every edge for the backward. Here gates and values alone
are kept; all else is made again, one chunk of edges after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import linear
from torch_geometric.nn import BatchNorm

from graphgps_kmip.common.gradients import differentiable_gradients
from graphgps_kmip.mpnn import gated_cpu
from graphgps_kmip.mpnn.edge_gate import DistanceGate, factor_of
from graphgps_kmip.mpnn.message_passing import Nodes, ends, needed
from graphgps_kmip.registry import register

CHUNK_BYTES = 8 * 2**20  # of one (edges, C) tensor; at most four of them live at a time


def gated_sum(
    gate: Tensor, value: Tensor, factor: Tensor | None, source: Tensor, target: Tensor, num_targets: int
) -> tuple[Tensor, Tensor]:
    r"""Sum gated values, and the gates themselves, over the edges that end in each node.

    .. math::
        w_e = f_e \, \sigma(g_e), \qquad
        \mathrm{total}_i = \sum_{e: t(e) = i} w_e \odot v_{s(e)}, \qquad
        \mathrm{normaliser}_i = \sum_{e: t(e) = i} w_e

    Gradients flow to gate, value and factor, as often as wanted (a second derivative keeps what is as long as edges
    times channels). Sums are taken in float32 at least; on a CPU they repeat bit for bit. A node without edges gets
    zeros.

    Args:
        gate: g, before the sigmoid.
        value: v, of the source nodes.
        factor: f, a further factor of each edge, or None for 1.
        source: s, row of value.
        target: t, row of the result.
        num_targets: rows N of the result.

    Shapes:
        gate (E, C), value (M, C), factor (E, 1), source and target (E,) -> (N, C), (N, C).

    Cost: O(E C) time; beside its inputs it holds O(N C) and chunks of `CHUNK_BYTES`.
    """
    return _GatedSum.apply(gate, value, factor, source, target, num_targets)


def _plain(
    gate: Tensor, value: Tensor, factor: Tensor | None, source: Tensor, target: Tensor, num_targets: int
) -> tuple[Tensor, Tensor]:
    """The same sums in operations that are differentiable as often as wanted, all edges at once."""
    weight = gate.to(_wide(gate)).sigmoid() * (1.0 if factor is None else factor)
    nothing = weight.new_zeros(num_targets, gate.size(1))
    return nothing.index_add(0, target, weight * value[source]), nothing.index_add(0, target, weight)


class _GatedSum(Function):
    @staticmethod
    def forward(
        ctx: Any,
        gate: Tensor,
        value: Tensor,
        factor: Tensor | None,
        source: Tensor,
        target: Tensor,
        num_targets: int,
    ) -> tuple[Tensor, Tensor]:
        """Walk the chunks, adding to both sums."""
        ctx.save_for_backward(gate, value, factor, source, target)
        total = gate.new_zeros(num_targets, gate.size(1), dtype=_wide(gate))
        normaliser = torch.zeros_like(total)
        for part in _chunks(gate):
            weight = gate[part].to(total.dtype).sigmoid()  # (chunk, C)
            if factor is not None:
                weight *= factor[part]
            normaliser.index_add_(0, target[part], weight)
            total.index_add_(0, target[part], weight.mul_(value.index_select(0, source[part])))
        return total, normaliser

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, grad_normaliser: Tensor) -> tuple[Tensor | None, ...]:
        """``dw = v dtotal + dnormaliser``, ``dg = f s (1 - s) dw``, ``df = <s, dw>``, ``dv = sum_e w dtotal``."""
        gate, value, factor, source, target = ctx.saved_tensors
        if torch.is_grad_enabled():
            plain = partial(_plain, source=source, target=target, num_targets=len(grad_total))
            return *differentiable_gradients(plain, (gate, value, factor), (grad_total, grad_normaliser)), *[None] * 3
        grad_gate, grad_factor = torch.empty_like(gate), None if factor is None else torch.empty_like(factor)
        grad_value = torch.zeros_like(value, dtype=grad_total.dtype)
        for part in _chunks(gate):
            sigma = gate[part].to(grad_total.dtype).sigmoid()  # (chunk, C), as the next two
            grad_message = grad_total.index_select(0, target[part])
            grad_weight = value.index_select(0, source[part]) * grad_message
            grad_weight += grad_normaliser.index_select(0, target[part])
            grad_message *= sigma
            grad_weight *= sigma
            if factor is not None:
                grad_factor[part] = grad_weight.sum(dim=1, keepdim=True)
                grad_message *= factor[part]
                grad_weight *= factor[part]
            grad_value.index_add_(0, source[part], grad_message)
            grad_gate[part] = grad_weight.mul_(sigma.neg_().add_(1.0))
        return grad_gate, grad_value.to(value.dtype), grad_factor, None, None, None


def _wide(gate: Tensor) -> torch.dtype:
    return torch.promote_types(gate.dtype, torch.float32)


def _chunks(gate: Tensor) -> Iterator[slice]:
    """Slices of edges, as many at a time as `CHUNK_BYTES` allow."""
    step = max(1, CHUNK_BYTES // max(1, gate.size(1) * _wide(gate).itemsize))
    return (slice(start, start + step) for start in range(0, gate.size(0), step))


@register("message_passing", "GatedGCN", aliases=("CustomGatedGCN",))
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
