"""Gated means of GatedGCN by fused C loops on a CPU (``native/gated_sum.c``).

``gated_update.py`` has the linear maps and the edge update in one operator.
"""

from __future__ import annotations

import ctypes
import errno
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from graphgps_kmip.common.gradients import differentiable_gradients
from graphgps_kmip.common.operators import new_tensors, operator
from graphgps_kmip.native import dtype_flags, load, pointer, unavailable_reason

EPS = 1e-6  # added to the sum of gates, as in the public codes: a node without edges gets zeros
EDGE_WORK = 20_000  # channels of edges that take about as long as starting a thread (20 us)


def can_run(*tensors: Tensor) -> bool:
    """Whether the C loops support these tensors of nodes and edges (32-bit indices), outside of autocast."""
    first = tensors[0]
    fits = first.dtype in (torch.float32, torch.float64)
    fits &= all(x.device.type == "cpu" and x.dtype == first.dtype and x.size(0) < 2**31 for x in tensors)
    fits &= not torch.is_autocast_enabled("cpu")
    return fits and unavailable_reason("gated_sum", *dtype_flags(first.dtype)) is None


def gated_mean(
    own: Tensor,
    other: Tensor,
    edge: Tensor,
    factor: Tensor | None,
    source: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Gate the edges and add to each target the mean of its sources, weighted by the gates.

    .. math::
        g_e = W c_e + d_{t(e)} + h_{s(e)}, \qquad w_e = f_e \, \sigma(g_e), \qquad
        o_i = a_i + \sum_{e: t(e) = i} w_e \odot b_{s(e)} / (\textstyle\sum_{e: t(e) = i} w_e + 10^{-6})

    Gradients flow to own, other, edge, factor and weight, as often as wanted (a second derivative keeps tensors of
    size edges times channels). Results repeat bit for bit, on any number of threads. The backward pass keeps edge and
    gates.

    Args:
        own (Tensor): a and d of the targets, side by side.
        other (Tensor): b and h of the sources, side by side.
        edge (Tensor): c.
        factor (Tensor or None): f, or None for 1.
        source (Tensor): s, row of other.
        target (Tensor): t, row of own.
        weight (Tensor, optional): W; None: the identity. (default: None)

    Shapes:
        own (N, 2 C), other (M, 2 C), edge (E, C), factor (E, 1), source and target (E,), weight (C, C)
        -> o (N, C), g (E, C).

    Raises:
        IndexError: the source or target of an edge is not a node.
        MemoryError: not enough for the lists of edges.
    """
    edge = edge if weight is None else linear(edge, weight)
    out, gate, _, _ = _gated_mean(own, other, edge, factor, source, target)
    return out, gate


def _mean(
    own: Tensor, other: Tensor, edge: Tensor, factor: Tensor | None, source: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return o, g, the means, and the inverse sums of gates."""
    edge = edge.contiguous()
    gate = torch.empty_like(edge)
    out, mean, inverse = pass_forward(own, other, edge, factor, source, target, gate)
    return out, gate, mean, inverse


def pass_forward(
    own: Tensor,
    other: Tensor,
    edge: Tensor,
    factor: Tensor | None,
    source: Tensor,
    target: Tensor,
    gate: Tensor,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Write the gates, perhaps over ``edge``; return o, the means, and the inverse sums of gates.

    ``bias`` (4 C) is what own (a, d) and other (b, h) lack.
    """
    own, other = _rows(own), _rows(other)
    source, target = source.long().contiguous(), target.long().contiguous()
    factor = None if factor is None else factor.contiguous()
    results = out, mean, inverse = tuple(own.new_empty(len(own), edge.size(1)) for _ in range(3))
    _check(
        _library(own).gated_forward(
            *(pointer(one, rows=True) for one in (own, other)),
            *map(pointer, (bias, edge, factor, source, target)),
            *_sizes(edge, own, other),
            *map(pointer, (gate, *results)),
        )
    )
    return out, mean, inverse


def _mean_back(
    grad_out: Tensor,
    grad_gate: Tensor | None,
    gate: Tensor,
    other: Tensor,
    factor: Tensor | None,
    source: Tensor,
    target: Tensor,
    mean: Tensor,
    inverse: Tensor,
) -> list[Tensor]:
    """Return the gradients of own, other and edge, and that of factor if there is one."""
    constants = factor, source, target, mean, inverse
    grad_own, grad_other = other.new_empty(len(mean), other.size(1)), *new_tensors(other)
    saved = gate, other.contiguous(), *constants
    grads = grad_own, grad_other, *pass_backward(grad_out, grad_gate, *saved, grad_own, grad_other)
    return [one for one in grads if one is not None]


def pass_backward(
    grad_out: Tensor,
    grad_edge: Tensor | None,
    gate: Tensor,
    other: Tensor,
    factor: Tensor | None,
    source: Tensor,
    target: Tensor,
    mean: Tensor,
    inverse: Tensor,
    grad_own: Tensor,
    grad_other: Tensor,
    bias: Tensor | None = None,
    affine: Tensor | None = None,
    slopes: Tensor | None = None,
    relu: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Pass over the edges of each target, then over those of each source; return the gradients of gate and factor.

    Those of own and other are written to ``grad_own`` and ``grad_other``, whose rows are as far apart as own's and
    other's. ``grad_edge`` is the gradient of the gates or, with ``affine`` and ``slopes``, of a norm behind them.
    """
    other = _rows(other)
    grad_out, gate, mean, inverse = (one.contiguous() for one in (grad_out, gate, mean, inverse))
    grad_edge, factor = (None if one is None else one.contiguous() for one in (grad_edge, factor))
    source, target = source.long().contiguous(), target.long().contiguous()
    grad_gate, grad_factor = torch.empty_like(gate), None if factor is None else torch.empty_like(factor)
    _check(
        _library(other).gated_backward(
            pointer(other, rows=True),
            *map(pointer, (bias, factor, source, target)),
            *_sizes(gate, grad_own, other),
            *map(pointer, (grad_out, grad_edge, None if slopes is None else affine, slopes)),
            int(relu),
            *map(pointer, (gate, mean, inverse)),
            *(pointer(one, rows=True) for one in (grad_own, grad_other)),
            *map(pointer, (grad_gate, grad_factor)),
        )
    )
    return grad_gate, grad_factor


def _keep_mean(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    _, other, _, factor, source, target = inputs
    _, gate, *constants = output
    ctx.save_for_backward(gate, other, factor, source, target, *constants)
    ctx.mark_non_differentiable(*constants)
    ctx.set_materialize_grads(False)  # the edge output of a last layer is unused


def _mean_gradients(ctx: Any, grad_out: Tensor | None, grad_gate: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    saved = gate, other, factor, source, target, mean, _ = ctx.saved_tensors
    if torch.is_grad_enabled():
        given = grad_out, grad_gate, (gate, other, factor), (source, target), mean.size(0)
        return *_differentiable(*given), None, None
    grad_out = gate.new_zeros(mean.shape) if grad_out is None else grad_out
    grads = _gated_mean_backward(grad_out, grad_gate, *saved)
    return *grads, *[None] * (6 - len(grads))


def _differentiable(
    grad_out: Tensor | None,
    grad_gate: Tensor | None,
    inputs: tuple[Tensor, Tensor, Tensor | None],
    edge_index: tuple[Tensor, Tensor],
    num_targets: int,
) -> tuple[Tensor | None, ...]:
    """Gradients of own, other, edge and factor in operations that are differentiable again.

    ``inputs`` holds the gates g, an output: a function of own, other and edge, whose gradient flows through this
    backward once more.
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
    """The gated mean of each target, given the gates: (N, C), all edges at once."""
    share = gate.to(torch.promote_types(gate.dtype, torch.float32)).sigmoid() * (1.0 if factor is None else factor)
    nothing = share.new_zeros(num_targets, gate.size(1))
    messages = share * other[source, : gate.size(1)]
    total, normaliser = (nothing.index_add(0, target, part) for part in (messages, share))
    return total / (normaliser + EPS)


def _empty_mean(own: Tensor, edge: Tensor) -> tuple[Tensor, ...]:
    out = own.new_empty(own.size(0), edge.size(1))
    return out, *new_tensors(edge), *(torch.empty_like(out) for _ in range(2))


_gated_mean_backward = operator(
    "gated_mean_backward(Tensor grad_out, Tensor? grad_gate, Tensor gate, Tensor other, Tensor? factor, Tensor source, "
    "Tensor target, Tensor mean, Tensor inverse) -> Tensor[]",
    _mean_back,
    lambda grad_out, grad_gate, gate, other, factor, source, target, mean, inverse: [  # noqa: ARG005
        other.new_empty(mean.size(0), other.size(1)), *new_tensors(other, gate, factor)
    ],
)  # fmt: skip
_gated_mean = operator(
    "gated_mean(Tensor own, Tensor other, Tensor edge, Tensor? factor, Tensor source, Tensor target) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _mean,
    lambda own, other, edge, *_: _empty_mean(own, edge),  # noqa: ARG005
    keep=_keep_mean,
    gradients=_mean_gradients,
)


def plain_gates_and_means(
    own: Tensor, other: Tensor, edge: Tensor, factor: Tensor | None, source: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """`gated_mean` without a weight, in operations that are differentiable as often as wanted, all edges at once."""
    (a, d), h = own.chunk(2, 1), other.chunk(2, 1)[1]
    gate = edge + d[target] + h[source]
    return a + _plain_mean(gate, other, factor, source, target, len(a)), gate


def _sizes(edge: Tensor, own: Tensor, other: Tensor) -> list[Any]:
    threads = max(1, min(torch.get_num_threads(), edge.numel() // EDGE_WORK))
    lengths = (len(edge), len(own), len(other), own.stride(0), other.stride(0))
    return [*map(ctypes.c_long, lengths), edge.size(1), threads]


def _rows(x: Tensor) -> Tensor:
    """Return rows whose numbers are side by side; the rows may be apart."""
    return x if x.stride(1) == 1 else x.contiguous()


def _library(x: Tensor) -> ctypes.CDLL:
    return load("gated_sum", *dtype_flags(x.dtype))


def _check(failed: int) -> None:
    if failed == errno.EINVAL:
        raise IndexError("edge_index names nodes that do not exist")
    if failed:
        raise MemoryError("not enough memory for GatedGCN's lists of edges")
