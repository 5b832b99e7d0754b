"""The sums over edges of GatedGCN, in memory that does not grow with the number of edges.

The plain form keeps gathered values, sigmoids and messages of every edge for the backward. Here gates and values alone
are kept; all else is made again, one chunk of edges after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from graphgps_kmip.common.gradients import differentiable_gradients

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
