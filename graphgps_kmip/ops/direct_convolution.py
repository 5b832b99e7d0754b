"""Circular convolutions of small graphs, and gates between them, by sums over all places: a fused C loop.

A transform of some dozens of nodes takes less time than the calls around it, and graphs of many sizes would be padded
to the largest. ``native/direct_convolution.c`` takes n^2 products for each channel of a graph, all in registers and the
cache.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from graphgps_kmip.ops.native import dtype_flags, load, pointer, unavailable_reason
from graphgps_kmip.ops.size_groups import SizeGroups

SUM_PAIRS = 150  # pairs of nodes that are summed in the time in which one number is transformed, there and back
THREAD_WORK = 400_000  # products that take about as long as starting a thread (20 us)

Kinds = tuple[int, int, bool]  # filters, gates, whether a gate comes first


def can_sum(values: Tensor, filters: Tensor, groups: SizeGroups) -> bool:
    """Whether the C loop supports these tensors, and takes less time than transforms."""
    fits = values.device.type == "cpu" and values.dtype == filters.dtype
    fits &= values.dtype in (torch.float32, torch.float64) and groups.num_pairs <= SUM_PAIRS * groups.num_transformed
    return fits and unavailable_reason("direct_convolution", *dtype_flags(values.dtype)) is None


def direct_convolutions(values: Tensor, filters: Tensor, groups: SizeGroups, kinds: Kinds) -> Tensor:
    """Return what `gated_convolutions` does; shapes as there.

    Raises:
        MemoryError: not enough for the filters of some channels of the largest graph.
    """
    out = values.new_empty(len(values), values.size(1) // (kinds[1] + 1))
    _call(values, filters, None, groups, kinds, (out, None, None))
    return out


def direct_gradients(
    values: Tensor, filters: Tensor, grad: Tensor, groups: SizeGroups, kinds: Kinds
) -> tuple[Tensor, Tensor]:
    """Return the gradients of both inputs for that of the output; errors are those of `direct_convolutions`."""
    grads = tuple(torch.empty_like(one, memory_format=torch.contiguous_format) for one in (values, filters))
    _call(values, filters, grad, groups, kinds, (None, *grads))
    return grads


def _call(
    values: Tensor,
    filters: Tensor,
    grad: Tensor | None,
    groups: SizeGroups,
    kinds: Kinds,
    results: tuple[Tensor | None, ...],
) -> None:
    num_filters, num_gates, gate_first = kinds
    dim = values.size(1) // (num_gates + 1)
    work = groups.num_pairs * filters.size(1)
    # kept until the call has returned: a pointer does not keep a tensor alive
    inputs = [None if one is None else one.contiguous() for one in (values, filters, grad)]
    failed = load("direct_convolution", *dtype_flags(values.dtype)).direct_convolution(
        *map(pointer, (*inputs, *groups.table)),
        ctypes.c_long(len(groups.sizes)),
        *(dim, num_filters, num_gates, int(gate_first)),
        max(1, min(torch.get_num_threads(), work // THREAD_WORK)),
        *map(pointer, results),
    )
    if failed:
        raise MemoryError(f"not enough memory for the convolutions of a graph of {groups.sizes[-1]} nodes")
