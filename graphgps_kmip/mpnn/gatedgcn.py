r"""GatedGCN message passing with edge features (Bresson and Laurent 2017; the form of k-MIP thesis section 2.5).

On a CPU fused C loops (``native/gated_sum.c``) read and write each row of an edge once in a pass; elsewhere the sums
over edges walk chunks of edges. Either way only gates and values are stored for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import BatchNorm

from graphgps_kmip.errors import InputError
from graphgps_kmip.mpnn.message_passing import DistanceGate, compute_gate, required_edge_attr
from graphgps_kmip.ops.dropout import Dropout
from graphgps_kmip.ops.gated_mean import EPS, can_run, can_update, gated_mean, gated_update, linear_rows
from graphgps_kmip.ops.operators import new_tensors, operator, refuse_second_derivative
from graphgps_kmip.registry import register

CHUNK_BYTES = 8 * 2**20  # of one (edges, C) tensor; at most four of them live at a time


@register("message_passing", "GatedGCN", aliases=("CustomGatedGCN",))
class GatedGCN(nn.Module):
    r"""Edge-gated graph convolution that updates nodes and edges, with residuals inside.

    .. math::
        g_{ij} &= C e_{ij} + D x_i + E x_j, \qquad w_{ij} = \sigma(g_{ij}) \, r_{ij}, \qquad
        \eta_{ij} = w_{ij} / (\textstyle\sum_{j'} w_{ij'} + 10^{-6}) \\
        x_i' &= x_i + \mathrm{drop}(\mathrm{act}(\mathrm{BN}(A x_i + \textstyle\sum_j \eta_{ij} \odot B x_j))) \\
        e_{ij}' &= e_{ij} + \mathrm{drop}(\mathrm{act}(\mathrm{BN}(g_{ij})))

    where j runs over the in-neighbours of i, and r is 1, or the gate of EquivStableLapPE (see `DistanceGate`). All five
    linear maps have biases.

    Args:
        dim (int): width C of nodes and edges.
        dropout (float, optional): probability, on both updates. (default: 0.0)
        act (callable, optional): builds the activation. (default: ReLU)
        residual (bool, optional): add ``x`` to the node update; off in the public k-MIP code. (default: True)
        edge_residual (bool, optional): add ``edge_attr`` to the edge update. (default: True)
        outer_residual (bool, optional): leave the residual of nodes to the layer around this one. (default: False)
        equivstable_pe (bool, optional): gate by the distance of source and target in ``encoding``. (default: False)

    Shapes: x (N, C), edge_index (2, E) as (source j, target i), edge_attr (E, C), encoding like x -> (N, C), (E, C).

    Raises:
        ValueError: both residuals; when called: edge_attr is None, or encoding does not fit ``equivstable_pe``.
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
        outer_residual: bool = False,
        equivstable_pe: bool = False,
    ) -> None:
        super().__init__()
        if residual and outer_residual:
            raise InputError(
                "gt.gatedgcn.outer_residual True needs gt.gatedgcn.residual False: the input would be added twice"
            )
        self.A, self.B, self.C, self.D, self.E = (nn.Linear(dim, dim) for _ in range(5))
        # a batch of one node, or of at most one edge, is normalised by the running statistics
        self.node_norm, self.edge_norm = (BatchNorm(dim, allow_single_element=True) for _ in range(2))
        self.gate = DistanceGate(dim, act) if equivstable_pe else None
        self.act, self.dropout = act(), Dropout(dropout)
        self.residual, self.edge_residual, self.outer_residual = residual, edge_residual, outer_residual

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, encoding: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the updated node and edge features."""
        edge_attr = required_edge_attr("GatedGCN", edge_attr)
        source, target = edge_index
        factor = compute_gate("GatedGCN", self.gate, encoding, edge_index)
        if can_run(edge_attr, x):
            weight, bias = self._join_maps()
            (target_weight, source_weight), (target_bias, source_bias) = weight.chunk(2), bias.chunk(2)
            maps = linear_rows(x, target_weight, target_bias), linear_rows(x, source_weight, source_bias)
            dropout = self.dropout.p if self.training else 0.0
            arguments = *maps, edge_attr, factor, source, target, self.C.weight
            if can_update(edge_attr, self.edge_norm, self.act, dropout):
                mean, edge_new = gated_update(*arguments, self.edge_norm, dropout, self.edge_residual)
                return self._update(mean, self.node_norm, x if self.residual else None), edge_new
            mean, gate = gated_mean(*arguments)
        else:
            mean, gate = self._gate_and_sum(x, edge_attr, factor, source, target)
        edge_new = self._update(gate, self.edge_norm, edge_attr if self.edge_residual else None)
        return self._update(mean, self.node_norm, x if self.residual else None), edge_new

    def _gate_and_sum(
        self, x: Tensor, edge_attr: Tensor, factor: Tensor | None, source: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ``A x + mean`` of the nodes (N, C) and the gates g of the edges (E, C)."""
        gate = self.C(edge_attr)
        gate += self.D(x).index_select(0, target)  # in place: (E, C) tensors dominate the memory of a layer
        gate += self.E(x).index_select(0, source)
        weighted, normaliser = gated_sum(gate, self.B(x), factor, source, target, x.size(0))
        return self.A(x) + weighted / (normaliser + EPS), gate

    def _join_maps(self) -> tuple[Tensor, Tensor]:
        """Return weights (4 C, C) and biases (4 C) of A, D, B and E, C's bias with D's: its gradient is per node."""
        weights = [linear_map.weight for linear_map in (self.A, self.D, self.B, self.E)]
        return torch.cat(weights), torch.cat([self.A.bias, self.D.bias + self.C.bias, self.B.bias, self.E.bias])

    def _update(self, value: Tensor, norm: nn.Module, residual: Tensor | None) -> Tensor:
        new = self.dropout(self.act(norm(value)))
        return new if residual is None else residual + new


def _sums(
    gate: Tensor, value: Tensor, factor: Tensor | None, source: Tensor, target: Tensor, num_targets: int
) -> tuple[Tensor, Tensor]:
    total = gate.new_zeros(num_targets, gate.size(1), dtype=_wide(gate))
    normaliser = torch.zeros_like(total)
    for part in _chunks(gate):
        weight = gate[part].to(total.dtype).sigmoid()  # (chunk, C)
        if factor is not None:
            weight *= factor[part]
        normaliser.index_add_(0, target[part], weight)
        total.index_add_(0, target[part], weight.mul_(value.index_select(0, source[part])))
    return total, normaliser


def _sums_back(
    grad_total: Tensor,
    grad_normaliser: Tensor,
    gate: Tensor,
    value: Tensor,
    factor: Tensor | None,
    source: Tensor,
    target: Tensor,
) -> list[Tensor]:
    """``dw = v dtotal + dnormaliser``, ``dg = f s (1 - s) dw``, ``df = <s, dw>``, ``dv = sum_e w dtotal``."""
    grad_gate, grad_factor = torch.empty_like(gate), None if factor is None else torch.empty_like(factor)
    grad_value = value.new_zeros(value.shape, dtype=grad_total.dtype)
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
    grads = [grad_gate, grad_value.to(value.dtype)]
    return grads if factor is None else [*grads, grad_factor]


def _keep_sums(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[:-1])


def _sums_gradients(ctx: Any, grad_total: Tensor, grad_normaliser: Tensor) -> tuple[Tensor | None, ...]:
    refuse_second_derivative("GatedGCN")
    grads = _gated_sum_backward(grad_total, grad_normaliser, *ctx.saved_tensors)
    return *grads, *[None] * (6 - len(grads))


_gated_sum_backward = operator(
    "gated_sum_backward(Tensor grad_total, Tensor grad_normaliser, Tensor gate, Tensor value, Tensor? factor, "
    "Tensor source, Tensor target) -> Tensor[]",
    _sums_back,
    lambda grad_total, grad_normaliser, gate, value, factor, *_: new_tensors(gate, value, factor),  # noqa: ARG005
)
# Sums over the edges into each node, total_i = sum_e w_e v_{s(e)} and normaliser_i = sum_e w_e, w_e = f_e sigmoid(g_e):
# of gate g (E, C), value v (M, C), factor f (E, 1) or None, source s and target (E,); (N, C) each. They are taken in
# float32 at least; on a CPU they repeat bit for bit.
gated_sum = operator(
    "gated_sum(Tensor gate, Tensor value, Tensor? factor, Tensor source, Tensor target, SymInt num_targets) "
    "-> (Tensor, Tensor)",
    _sums,
    lambda gate, value, factor, source, target, num_targets: tuple(  # noqa: ARG005
        gate.new_empty(num_targets, gate.size(1), dtype=_wide(gate)) for _ in range(2)
    ),
    keep=_keep_sums,
    gradients=_sums_gradients,
)


def _wide(gate: Tensor) -> torch.dtype:
    return torch.promote_types(gate.dtype, torch.float32)


def _chunks(gate: Tensor) -> Iterator[slice]:
    step = max(1, CHUNK_BYTES // max(1, gate.size(1) * _wide(gate).itemsize))
    return (slice(start, start + step) for start in range(0, gate.size(0), step))
