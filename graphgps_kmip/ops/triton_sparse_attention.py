"""Triton kernels of sparse attention, host side: the mathematics of ``sparse_attention.py`` fused on a GPU.

A stable sort of the index by key, instead of atomic additions, makes the gradients of keys repeat bit for bit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from graphgps_kmip.ops.native import switched_off
from graphgps_kmip.ops.triton_check import power_above, triton_can_run

CHUNK = 1024  # entries that one program sums: the sums of hubs, which very many queries select, are split
LARGEST_TILE = 4096  # gathered values that a program holds at a time: 32 registers of each thread


def can_run(x: Tensor) -> bool:
    """Whether the kernels support tensors like x: float32 or float64, on a GPU on which the self-check passes."""
    fits = x.dtype in (torch.float32, torch.float64)
    return fits and not switched_off() and triton_can_run(x.device, _check)


def sparse_attention_forward(
    v: Tensor, rows: Tensor, score: Tensor, dim_kq: int, keep: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute `sparse_attention.torch_forward`."""
    from graphgps_kmip.ops import triton_sparse_attention_kernels  # triton is optional

    out, weight = v.new_empty(len(rows), v.size(1)), v.new_empty(rows.shape)
    if not rows.numel():
        return out.zero_(), weight
    sizes = _tile(rows.size(1), v.size(1))
    rows, score, v = rows.contiguous(), score.contiguous(), v.contiguous()
    with torch.cuda.device_of(v):
        triton_sparse_attention_kernels.forward_kernel[(-(-len(rows) // sizes["ROWS"]),)](
            v, rows, score, rows if keep is None else keep.contiguous(), out, weight, *rows.shape,
            TEMPERATURE=math.sqrt(dim_kq), KEPT_PART=1.0 - dropout, C=v.size(1), HAS_KEEP=keep is not None, **sizes,
        )  # fmt: skip
    return out, weight


def sparse_attention_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, rows: Tensor, weight: Tensor, keep: Tensor | None, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `sparse_attention.torch_backward`: a sort of R K keys, and K (C + D) products for each query."""
    from graphgps_kmip.ops import triton_sparse_attention_kernels  # triton is optional

    if not rows.numel() or not k.numel():
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    grad_out, q, k, v, rows, weight = (tensor.contiguous() for tensor in (grad_out, q, k, v, rows, weight))
    grad_q, grad_score = torch.empty_like(q), torch.empty_like(weight)
    sizes = _tile(rows.size(1), max(v.size(1), q.size(1)))
    with torch.cuda.device_of(v):
        triton_sparse_attention_kernels.backward_kernel[(-(-len(rows) // sizes["ROWS"]),)](
            grad_out, k, v, rows, weight, rows if keep is None else keep.contiguous(), grad_q, grad_score, *rows.shape,
            TEMPERATURE=math.sqrt(q.size(1)), KEPT_PART=1.0 - dropout, C=v.size(1), D=q.size(1),
            HAS_KEEP=keep is not None, **sizes,
        )  # fmt: skip
        used = weight if keep is None else weight * keep / (1.0 - dropout)
        key, order = rows.flatten().sort(stable=True)
        bounds = torch.searchsorted(key, torch.arange(len(k) + 1, device=key.device, dtype=key.dtype))
        return grad_q, *(
            _segment_sum(values, entry_weight, order, bounds, rows.size(1))
            for values, entry_weight in ((q, grad_score), (grad_out, used))
        )


def _segment_sum(values: Tensor, weight: Tensor, order: Tensor, bounds: Tensor, num_slots: int) -> Tensor:
    """``out_s = sum weight_e values_(e // num_slots)`` over the entries e = order[bounds_s : bounds_s+1]: (S, C)."""
    num_chunks = len(bounds) - 1 + len(order) // CHUNK  # at least as many as there are, known without asking the device
    segment_ends = ((bounds.diff() + CHUNK - 1) // CHUNK).cumsum(0)
    chunk = torch.arange(num_chunks, device=bounds.device)
    segment = torch.searchsorted(segment_ends, chunk, right=True)
    offsets = torch.cat([segment_ends.new_zeros(1), segment_ends])  # first chunk of each segment
    starts = bounds[segment] + (chunk - offsets[segment]) * CHUNK
    last = bounds[(segment + 1).clamp(max=len(bounds) - 1)]
    ends = torch.minimum(starts + CHUNK, last)  # start >= end: no such chunk
    partial = _launch(values, weight, order, starts, ends, num_slots)
    return _launch(partial, None, order, offsets[:-1], offsets[1:], 1)


def _launch(values: Tensor, weight: Tensor | None, order: Tensor, starts: Tensor, ends: Tensor, slots: int) -> Tensor:
    from graphgps_kmip.ops import triton_sparse_attention_kernels

    out = values.new_empty(len(starts), values.size(1))
    width = min(power_above(values.size(1)), 128)
    triton_sparse_attention_kernels.segment_kernel[(len(starts), -(-values.size(1) // width))](
        values, order if weight is None else weight.contiguous(), order, starts.contiguous(), ends.contiguous(), out,
        slots, C=values.size(1), ENTRIES=max(1, 512 // width), WIDTH=width, WEIGHTED=weight is not None, num_warps=1,
    )  # fmt: skip
    return out


def _tile(num_slots: int, channels: int) -> dict[str, int]:
    """Rows, slots and columns of the values that a program gathers at a time."""
    slots, width = power_above(num_slots), min(power_above(channels), 32)
    return {"ROWS": max(1, min(16, LARGEST_TILE // (slots * width))), "SLOTS": slots, "WIDTH": width}


def _check(device: torch.device) -> None:
    """Compare both kernels with plain torch: a hub, empty slots, dropout."""
    from graphgps_kmip.ops.sparse_attention import torch_backward, torch_forward  # which imports this module

    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(300, (1500, 10), generator=generator, dtype=torch.int32)
    rows[:, 0], rows[::7, 3] = 5, -1
    score = torch.randn(rows.shape, generator=generator).masked_fill(rows < 0, -torch.inf)
    q, grad_out = (torch.randn(1500, 10, generator=generator) for _ in range(2))
    k, v = (torch.randn(300, 10, generator=generator) for _ in range(2))
    keep = torch.rand(rows.shape, generator=generator) < 0.7
    q, k, v, rows, score, keep, grad_out = (x.to(device) for x in (q, k, v, rows, score, keep, grad_out))
    out, weight = sparse_attention_forward(v, rows, score, 10, keep, 0.3)
    grads = sparse_attention_backward(grad_out, q, k, v, rows, weight, keep, 0.3)
    expected, _ = torch_forward(v, rows, score, 10, keep, 0.3)
    expected_grads = torch_backward(grad_out, q, k, v, rows, weight, keep, 0.3)
    torch.testing.assert_close((out, *grads), (expected, *expected_grads), rtol=1e-3, atol=1e-3)
