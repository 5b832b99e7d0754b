r"""GatedGCN message passing with edge features (Bresson and Laurent 2017; the form of k-MIP thesis section 2.5).

Differs from the plain form only in memory and time. On a CPU gates and means come from fused C loops
(``native/gated_sum.c``): edges are sorted by target, for the backward by source too (a counting sort), and each row of
an edge is read and written once in a pass, where tensor operations pass over it some ten times. Elsewhere the sums over
edges walk chunks of edges. Either way only gates and values are kept for the backward pass, where the plain form keeps
gathered values, sigmoids and messages of every edge.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import linear, pad
from torch_geometric.nn import BatchNorm

from graphgps_kmip.common.gradients import differentiable_gradients
from graphgps_kmip.mpnn.edge_gate import DistanceGate, factor_of
from graphgps_kmip.mpnn.message_passing import Nodes, required_edge_attr, source_and_target
from graphgps_kmip.native import dtype_flags, load, pointer, unavailable_reason
from graphgps_kmip.registry import register

EPS = 1e-6  # added to the sum of gates, as in the public codes: a node without edges gets zeros
EDGE_WORK = 20_000  # channels of edges that take about as long as starting a thread (20 us)
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
    linear maps have biases. Per edge, the gate g and the input of the edge update are kept for the backward pass.

    Args:
        dim (int): width C of nodes and edges.
        dropout (float, optional): probability, on both updates. (default: 0.0)
        act (callable, optional): builds the activation. (default: ReLU)
        residual (bool, optional): add ``x`` to the node update. Off in the public k-MIP code (methods: "three public
            codes differ"). (default: True)
        edge_residual (bool, optional): add ``edge_attr`` to the edge update. (default: True)
        equivstable_pe (bool, optional): gate by the distance of source and target node in ``encoding``.
            (default: False)

    Shapes:
        x (N, C) or a pair (M, C), (N, C), edge_index (2, E) as (source j, target i), edge_attr (E, C), encoding like x
        -> (N, C), (E, C).

    Raises:
        ValueError: when called: edge_attr is None, or encoding does not fit ``equivstable_pe``.
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
        # a batch of one node, or of at most one edge, is normalised by the running statistics
        self.node_norm, self.edge_norm = (BatchNorm(dim, allow_single_element=True) for _ in range(2))
        self.gate = DistanceGate(dim, act) if equivstable_pe else None
        self.act, self.dropout = act(), nn.Dropout(dropout)
        self.residual, self.edge_residual = residual, edge_residual

    def forward(
        self, x: Nodes, edge_index: Tensor, edge_attr: Tensor | None, encoding: Nodes | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the updated node and edge features."""
        edge_attr = required_edge_attr("GatedGCN", edge_attr)
        (x_source, x), (source, target) = source_and_target(x), edge_index
        factor = factor_of("GatedGCN", self.gate, encoding, edge_index)
        mean, gate = self._gated(x, x_source, self.C(edge_attr), factor, source, target)
        x_new, edge_new = self._update(mean, self.node_norm), self._update(gate, self.edge_norm)
        return (x + x_new if self.residual else x_new), (edge_attr + edge_new if self.edge_residual else edge_new)

    def _gated(
        self, x: Tensor, x_source: Tensor, edge: Tensor, factor: Tensor | None, source: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ``A x + mean`` of the nodes (N, C) and the gates g of the edges (E, C), in the memory of ``edge``."""
        if cpu_can_run(edge, x, x_source):
            own, other = _side_by_side(x, self.A, self.D), _side_by_side(x_source, self.B, self.E)
            return gated_mean(own, other, edge, factor, source, target)
        gate = edge
        gate += self.D(x).index_select(0, target)  # in place: (E, C) tensors dominate the memory of a layer
        gate += self.E(x_source).index_select(0, source)
        weighted, normaliser = gated_sum(gate, self.B(x_source), factor, source, target, x.size(0))
        return self.A(x) + weighted / (normaliser + EPS), gate

    def _update(self, value: Tensor, norm: nn.Module) -> Tensor:
        return self.dropout(self.act(norm(value)))


def _side_by_side(x: Tensor, first: nn.Linear, second: nn.Linear) -> Tensor:
    """Apply two linear maps in one product: x (N, C) -> (N, 2 C)."""
    return linear(x, torch.cat([first.weight, second.weight]), torch.cat([first.bias, second.bias]))


def cpu_can_run(*tensors: Tensor) -> bool:
    """Whether the C kernel supports these tensors of nodes and edges (32-bit indices)."""
    first = tensors[0]
    fits = first.dtype in (torch.float32, torch.float64)
    fits &= all(x.device.type == "cpu" and x.dtype == first.dtype and len(x) < 2**31 for x in tensors)
    return fits and unavailable_reason("gated_sum", *dtype_flags(first.dtype)) is None


def gated_mean(
    own: Tensor, other: Tensor, edge: Tensor, factor: Tensor | None, source: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Gate the edges and add to each target the mean of its sources, weighted by the gates.

    .. math::
        g_e = c_e + d_{t(e)} + h_{s(e)}, \qquad w_e = f_e \, \sigma(g_e), \qquad
        o_i = a_i + \sum_{e: t(e) = i} w_e \odot b_{s(e)} / (\textstyle\sum_{e: t(e) = i} w_e + 10^{-6})

    Gradients flow to own, other, edge and factor, as often as wanted (a second derivative keeps tensors of
    size edges times channels). Results repeat bit for bit, on any number of threads.

    Args:
        own (Tensor): a and d of the targets, side by side.
        other (Tensor): b and h of the sources, side by side.
        edge (Tensor): c; its memory is used for g.
        factor (Tensor or None): f, or None for 1.
        source (Tensor): s, row of other.
        target (Tensor): t, row of own.

    Shapes:
        own (N, 2 C), other (M, 2 C), edge (E, C), factor (E, 1), source and target (E,) -> o (N, C), g (E, C).

    Raises:
        IndexError: the source or target of an edge is not a node.
        MemoryError: not enough for the lists of edges.
    """
    return _GatedMean.apply(own, other, edge, factor, source, target)


class _GatedMean(Function):
    @staticmethod
    def forward(
        ctx: Any, own: Tensor, other: Tensor, edge: Tensor, factor: Tensor | None, source: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write the gates over ``edge``; keep them, the means, and the inverse sums of gates."""
        own, other = own.contiguous(), other.contiguous()
        source, target = source.long().contiguous(), target.long().contiguous()
        factor = None if factor is None else factor.contiguous()
        out, mean, inverse = (own.new_empty(len(own), edge.size(1)) for _ in range(3))
        ctx.sizes = len(edge), len(own), len(other)
        _check(
            _library(own).gated_forward(
                *map(pointer, (own, other, factor, source, target)),
                *_sizes(ctx.sizes, edge),
                *map(pointer, (edge, out, mean, inverse)),
            )
        )
        ctx.mark_dirty(edge)
        ctx.save_for_backward(other, edge, factor, source, target, mean, inverse)
        ctx.set_materialize_grads(False)  # the edge output of a last layer is unused
        return out, edge

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_gate: Tensor | None) -> tuple[Tensor | None, ...]:
        """Pass over the edges of each target, then over those of each source."""
        other, gate, factor, source, target, mean, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_differentiable(grad_out, grad_gate, (gate, other, factor), (source, target), len(mean)), None, None
        grad_out = torch.zeros_like(mean) if grad_out is None else grad_out.contiguous()
        grad_gate = None if grad_gate is None else grad_gate.contiguous()
        grads = other.new_empty(len(mean), other.size(1)), torch.empty_like(other), torch.empty_like(gate)
        grad_factor = None if factor is None else torch.empty_like(factor)
        _check(
            _library(other).gated_backward(
                *map(pointer, (other, factor, source, target)),
                *_sizes(ctx.sizes, gate),
                *map(pointer, (grad_out, grad_gate, gate, mean, inverse, *grads, grad_factor)),
            )
        )
        return (*grads, grad_factor, None, None)


def _differentiable(
    grad_out: Tensor | None,
    grad_gate: Tensor | None,
    inputs: tuple[Tensor, Tensor, Tensor | None],
    edge_index: tuple[Tensor, Tensor],
    num_targets: int,
) -> tuple[Tensor | None, ...]:
    """Gradients of own, other, edge and factor in operations that are differentiable again.

    ``inputs`` holds the gates g that the forward wrote over the edges: a function of own, other and edge, whose
    gradient flows through this backward once more.
    """
    (gate, other, factor), (source, target), dim = inputs, edge_index, inputs[0].size(1)
    plain = partial(_plain_mean, source=source, target=target, num_targets=num_targets)
    grad_edge, grad_other, grad_factor = differentiable_gradients(plain, (gate, other, factor), (grad_out,))
    if grad_gate is not None:
        grad_edge = grad_edge + grad_gate
    nothing = gate.new_zeros(num_targets, dim)
    grad_own = torch.cat([nothing if grad_out is None else grad_out, nothing.index_add(0, target, grad_edge)], dim=1)
    if grad_other is not None:
        at_source = gate.new_zeros(len(other), dim).index_add(0, source, grad_edge)
        grad_other = grad_other + pad(at_source, (dim, 0))
    return grad_own, grad_other, grad_edge, grad_factor


def _plain_mean(
    gate: Tensor, other: Tensor, factor: Tensor | None, source: Tensor, target: Tensor, num_targets: int
) -> Tensor:
    """The gated mean of each target, given the gates: (N, C)."""
    total, normaliser = _plain_sums(gate, other[:, : gate.size(1)], factor, source, target, num_targets)
    return total / (normaliser + EPS)


def _sizes(sizes: tuple[int, int, int], edge: Tensor) -> list[Any]:
    threads = max(1, min(torch.get_num_threads(), edge.numel() // EDGE_WORK))
    return [*map(ctypes.c_long, sizes), edge.size(1), threads]


def _library(x: Tensor) -> ctypes.CDLL:
    return load("gated_sum", *dtype_flags(x.dtype))


def _check(failed: int) -> None:
    if failed == errno.EINVAL:
        raise IndexError("edge_index names nodes that do not exist")
    if failed:
        raise MemoryError("not enough memory for GatedGCN's lists of edges")


def gated_sum(
    gate: Tensor, value: Tensor, factor: Tensor | None, source: Tensor, target: Tensor, num_targets: int
) -> tuple[Tensor, Tensor]:
    r"""Sum gated values, and the gates themselves, over the edges into each node.

    .. math::
        w_e = f_e \, \sigma(g_e), \qquad
        \mathrm{total}_i = \sum_{e: t(e) = i} w_e \odot v_{s(e)}, \qquad
        \mathrm{normaliser}_i = \sum_{e: t(e) = i} w_e

    Gradients flow to gate, value and factor, as often as wanted (a second derivative keeps tensors of size edges
    times channels). Sums are taken in float32 at least; on a CPU they repeat bit for bit. A node without edges gets
    zeros.

    Args:
        gate (Tensor): g, before the sigmoid.
        value (Tensor): v, of the source nodes.
        factor (Tensor or None): f, a further factor of each edge, or None for 1.
        source (Tensor): s, row of value.
        target (Tensor): t, row of the result.
        num_targets (int): rows N of the result.

    Shapes:
        gate (E, C), value (M, C), factor (E, 1), source and target (E,) -> (N, C), (N, C).

    Cost: O(E C) time; beside its inputs it holds O(N C) and chunks of `CHUNK_BYTES`.
    """
    return _GatedSum.apply(gate, value, factor, source, target, num_targets)


def _plain_sums(
    gate: Tensor, value: Tensor, factor: Tensor | None, source: Tensor, target: Tensor, num_targets: int
) -> tuple[Tensor, Tensor]:
    """The same sums in operations that are differentiable as often as wanted, all edges at once."""
    weight = gate.to(_wide(gate)).sigmoid() * (1.0 if factor is None else factor)
    nothing = weight.new_zeros(num_targets, gate.size(1))
    return nothing.index_add(0, target, weight * value[source]), nothing.index_add(0, target, weight)


class _GatedSum(Function):
    @staticmethod
    def forward(
        ctx: Any, gate: Tensor, value: Tensor, factor: Tensor | None, source: Tensor, target: Tensor, num_targets: int
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
            plain = partial(_plain_sums, source=source, target=target, num_targets=len(grad_total))
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
