"""Triton kernels of GatedGCN's gated means, host side: what ``native/gated_sum.c`` does on a CPU, on a GPU.

One kernel forward, two backward: edges by target, then by source. Each row of an edge is read and written once in a
pass; beside its inputs and results only the sorted edges are in memory. Without atomic additions results repeat bit for
bit. Half-precision inputs are computed in float32, and their results rounded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphgps_kmip.common.triton_check import power_above, triton_can_run
from graphgps_kmip.common.triton_lists import lists_of
from graphgps_kmip.native import switched_off

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def can_run(*tensors: Tensor) -> bool:
    """Whether the kernels support tensors of nodes and edges like these: on a GPU on which their self-check passes."""
    device = tensors[0].device
    fits = all(x.device == device and x.dtype in DTYPES and x.size(0) < 2**31 for x in tensors)
    return fits and not switched_off() and triton_can_run(device, _check)


def gated_mean_forward(
    own: Tensor,
    other: Tensor,
    edge: Tensor,
    factor: Tensor | None,
    source: Tensor,
    target: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return results o, gates g, means and inverse sums of gates, as `gated_mean` says; the last two float32 at least.

    A source that is not there gives NaN.

    Shapes:
        own (N, 2 C), other (M, 2 C), edge (E, C), factor (E, 1), source and target (E,) -> (N, C), (E, C), (N, C),
        (N, C).

    Raises:
        IndexError: the target of an edge is not there; on a GPU the error is the device's.
    """
    from graphgps_kmip.mpnn.triton_gated_mean_kernels import forward_kernel  # triton is optional

    own, other, edge, source = (one.contiguous() for one in (own, other, edge, source))
    dim, wide, lists = edge.size(1), torch.promote_types(own.dtype, torch.float32), lists_of(target, len(own))
    gate, out = torch.empty_like(edge), own.new_empty(len(own), dim)
    mean, inverse = (own.new_empty(len(own), dim, dtype=wide) for _ in range(2))
    partial, width = lists.partial(2 * dim, mean), _width(dim)

    def launch(programs: int, finish: bool) -> None:
        forward_kernel[(programs, -(-dim // width))](
            own, other, edge, _or(factor, own), source, *lists, partial, gate, out, mean, inverse,
            len(own), len(other), lists.num_parts, EPS=eps, C=dim,
            HAS_FACTOR=factor is not None, **lists.tile(width), FINISH=finish,
        )  # fmt: skip

    if dim:
        lists.launch(launch)
    return out, gate, mean, inverse


def gated_mean_backward(
    grad_out: Tensor,
    grad_gate: Tensor | None,
    gate: Tensor,
    other: Tensor,
    factor: Tensor | None,
    source: Tensor,
    target: Tensor,
    mean: Tensor,
    inverse: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of own, other, edge and factor from those of o and g; see `gated_mean_forward`."""
    from graphgps_kmip.mpnn import triton_gated_mean_kernels as kernels  # triton is optional

    given = (grad_out, gate, other, source, target, mean, inverse)
    grad_out, gate, other, source, target, mean, inverse = (one.contiguous() for one in given)
    (num_targets, dim), has_factor = mean.shape, factor is not None
    width = _width(dim)
    blocks = -(-dim // width)
    grad_own, grad_other, grad_edge = other.new_empty(num_targets, 2 * dim), *map(torch.empty_like, (other, gate))
    grad_factor = mean.new_empty(blocks, len(gate)) if has_factor else mean
    by_target, by_source = lists_of(target, num_targets), lists_of(source, len(other))
    partials = by_target.partial(dim, mean), by_source.partial(2 * dim, mean)
    factor = _or(factor, gate)

    def targets(programs: int, finish: bool) -> None:
        kernels.backward_targets_kernel[(programs, blocks)](
            grad_out, _or(grad_gate, gate), gate, other, factor, source, mean, inverse, *by_target, partials[0],
            grad_own, grad_edge, grad_factor, num_targets, len(other), by_target.num_parts, len(gate),
            C=dim, HAS_FACTOR=has_factor, HAS_GRAD_GATE=grad_gate is not None, **by_target.tile(width), FINISH=finish,
        )  # fmt: skip

    def sources(programs: int, finish: bool) -> None:
        kernels.backward_sources_kernel[(programs, blocks)](
            grad_out, grad_edge, gate, factor, target, inverse, *by_source, partials[1], grad_other,
            len(other), num_targets, by_source.num_parts, C=dim, HAS_FACTOR=has_factor,
            **by_source.tile(width), FINISH=finish,
        )  # fmt: skip

    if dim:
        by_target.launch(targets)
        by_source.launch(sources)
    return grad_own, grad_other, grad_edge, grad_factor.sum(0)[:, None].to(factor.dtype) if has_factor else None


def _or(tensor: Tensor | None, otherwise: Tensor) -> Tensor:
    """A kernel takes any tensor for one that it does not read."""
    return otherwise if tensor is None else tensor.contiguous()


def _width(dim: int) -> int:
    return min(power_above(dim), 128)


def _check(device: torch.device) -> None:
    """Compare forward and backward with autograd in float64: a split hub, a node without edges, factors."""
    from graphgps_kmip.mpnn.gated_mean import plain_gates_and_means  # which imports this module

    generator = torch.Generator().manual_seed(0)
    source, target = (torch.randint(19, (1200,), generator=generator).to(device) for _ in range(2))
    target[::2] = 5
    shapes = ((20, 24), (20, 24), (1200, 12), (1200, 1), (20, 12), (1200, 12))
    given = [torch.randn(shape, generator=generator).to(device) for shape in shapes]
    given[3].abs_()
    own, other, edge, factor, *grads = given
    out, gate, mean, inverse = gated_mean_forward(own, other, edge, factor, source, target, 1e-6)
    found = gated_mean_backward(*grads, gate, other, factor, source, target, mean, inverse)
    exact = [one.double().requires_grad_() for one in given[:4]]
    expected = plain_gates_and_means(*exact, source, target)
    wanted = torch.autograd.grad(expected, exact, [one.double() for one in grads])
    for one, other_one in zip((out, gate, *found), (*expected, *wanted), strict=True):
        torch.testing.assert_close(one.double(), other_one, rtol=1e-3, atol=1e-3)
