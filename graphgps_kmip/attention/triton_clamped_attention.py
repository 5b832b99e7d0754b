"""Triton kernels of clamped attention along edges, host side: what ``native/clamped_attention.c`` does, on a GPU.

Edges are walked by target in the forward pass; by target, source and kind in the backward pass, which keeps two numbers
for each edge and head while it runs. Without atomic additions results repeat bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphgps_kmip.common.triton_check import power_above, triton_can_run
from graphgps_kmip.common.triton_lists import RowLists, lists_of
from graphgps_kmip.native import switched_off

if TYPE_CHECKING:
    from graphgps_kmip.attention.clamped_attention import Form

LARGEST_DIM = 256  # channels of a head, which a program holds at once


def can_run(q: Tensor) -> bool:
    """Whether the kernels support queries like these (M, H, D): float32 or float64, on a GPU where the check passes."""
    fits = q.dtype in (torch.float32, torch.float64) and 0 < q.size(-1) <= LARGEST_DIM and q.size(1) < 2**16
    return fits and not switched_off() and triton_can_run(q.device, _check)


def clamped_attention_forward(
    form: Form, q: Tensor, k: Tensor, v: Tensor, e: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the output (M, H, D) and the sums of scores (M, H), as `torch_forward`.

    An edge from a row, or of a kind, that is not there gives NaN.

    Raises:
        IndexError: an edge into a query that is not there; on a GPU the error is the device's.
    """
    from graphgps_kmip.attention.triton_clamped_attention_kernels import forward_kernel  # triton is optional

    (source, _, kind), lists = form.edges.contiguous().unbind(0), lists_of(form.edges[1], len(q))
    constants = _constants(form, q, e, bias)
    q, k, v, e, bias, keep = _contiguous(q, k, v, e, bias, form.keep)
    out, total = torch.empty_like(q), q.new_empty(q.shape[:2])
    partial = _partial(lists, q)

    def launch(programs: int, finish: bool) -> None:
        forward_kernel[(programs, q.size(1))](
            q, k, v, e, bias, keep, source, kind, *lists, partial, out, total,
            len(q), len(k), len(e), lists.num_parts,
            EPS=form.eps, **constants, **lists.tile(power_above(q.size(2))), FINISH=finish,
        )  # fmt: skip

    lists.launch(launch)
    return out, total


def clamped_attention_backward(
    form: Form, grad_sum: Tensor, grad_total: Tensor, q: Tensor, k: Tensor, v: Tensor, e: Tensor, bias: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return the gradients of q, k, v, e and bias, as `torch_backward`."""
    from graphgps_kmip.attention.triton_clamped_attention_kernels import backward_kernel  # triton is optional

    (source, target, kind), lists = form.edges.contiguous().unbind(0), lists_of(form.edges[1], len(q))
    grad_sum, grad_total = grad_sum.contiguous(), grad_total.contiguous()
    constants, has_bias, shape_e = _constants(form, q, e, bias), bias is not None, e.shape
    q, k, v, e, bias, keep = _contiguous(q, k, v, e, bias, form.keep)
    grad_q, partial = torch.empty_like(q), _partial(lists, q)
    grad_logit, used = (q.new_empty(form.edges.size(1), q.size(1)) for _ in range(2))

    def launch(programs: int, finish: bool) -> None:
        backward_kernel[(programs, q.size(1))](
            q, k, v, e, bias, keep, source, kind, grad_sum, grad_total, *lists, partial, grad_q, grad_logit, used,
            len(q), len(k), len(e), lists.num_parts,
            **constants, **lists.tile(power_above(q.size(2))), FINISH=finish,
        )  # fmt: skip

    lists.launch(launch)
    by_source, by_kind = lists_of(form.edges[0], len(k)), lists_of(form.edges[2], len(e))
    grad_k, _ = _product_sum(by_source, grad_logit, (q, target), (e, kind), form.scale)
    grad_v, _ = _product_sum(by_source, used, (grad_sum, target), None, 1.0)
    grad_e, grad_bias = _product_sum(by_kind, grad_logit, (q, target), (k, source), form.scale)
    return grad_q, grad_k, grad_v, grad_e.sum_to_size(shape_e), grad_bias if has_bias else None


def _product_sum(
    lists: RowLists, weight: Tensor, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor] | None, scale: float
) -> tuple[Tensor, Tensor]:
    """``scale sum_e w_e a_e b_e`` and ``sum_e w_e`` over each row's edges: a and b as values and row of an edge."""
    from graphgps_kmip.attention.triton_clamped_attention_kernels import product_sum_kernel

    num_heads, dim = first[0].shape[1:]
    out, total = (weight.new_empty(lists.num_rows, num_heads, *rest) for rest in ((dim,), ()))
    partial, (factor, row) = _partial(lists, first[0]), second or first

    def launch(programs: int, finish: bool) -> None:
        product_sum_kernel[(programs, num_heads)](
            weight, *first, factor, row, *lists, partial, out, total, lists.num_rows, lists.num_parts,
            SCALE=scale, H=num_heads, D=dim, ED=factor.size(2), HAS_SECOND=second is not None, HAS_TOTAL=True,
            **lists.tile(power_above(dim)), FINISH=finish,
        )  # fmt: skip

    lists.launch(launch)
    return out, total


def _partial(lists: RowLists, q: Tensor) -> Tensor:
    return lists.partial(q.size(1) * (q.size(2) + 1), q)


def _contiguous(
    q: Tensor, k: Tensor, v: Tensor, e: Tensor, bias: Tensor | None, keep: Tensor | None
) -> tuple[Tensor, ...]:
    """Return what the kernels read; e has one row for each head, of all channels or of one."""
    e = e.expand(-1, q.size(1), -1)
    given = (q, k, v, e, q if bias is None else bias, q if keep is None else keep)
    return tuple(one.contiguous() for one in given)


def _constants(form: Form, q: Tensor, e: Tensor, bias: Tensor | None) -> dict[str, object]:
    return {
        "LIMIT": form.limit, "SCALE": form.scale, "KEPT_PART": 1.0 - form.dropout, "H": q.size(1), "D": q.size(2),
        "ED": e.size(2), "HAS_BIAS": bias is not None, "HAS_KEEP": form.keep is not None,
    }  # fmt: skip


def _check(device: torch.device) -> None:
    """Compare forward and backward with plain torch: a split hub, a query without edges, dropout, a bias."""
    from graphgps_kmip.attention import clamped_attention as plain  # which imports this module

    generator = torch.Generator().manual_seed(0)
    edges = torch.stack([torch.randint(size, (1200,), generator=generator) for size in (30, 19, 12)]).to(device)
    edges[1, ::2] = 5
    shapes = ((20, 2, 10), (30, 2, 10), (30, 2, 10), (12, 2, 10), (12, 2), (20, 2, 10), (20, 2))
    *heads, grad_sum, grad_total = (torch.randn(shape, generator=generator).to(device) for shape in shapes)
    keep = (torch.rand(1200, 2, generator=generator) < 0.7).to(device)
    form = plain.Form(5.0, 1e-6, 0.3, edges, None, 0.3, keep)
    found = *clamped_attention_forward(form, *heads), *clamped_attention_backward(form, grad_sum, grad_total, *heads)
    expected = *plain.torch_forward(form, *heads), *plain.torch_backward(form, grad_sum, grad_total, *heads)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))
