"""Triton kernels of full attention in each graph, host side: what ``native/full_attention.c`` does, on a GPU.

No graph is padded, dropout costs a hash, and biases and factors (`pair_attention`) are read where they are. Of
what torch has for graphs of different sizes, FlexAttention and ``varlen_attn`` have no dropout (2.13; the latter no
float32 either), and nested tensors are no longer developed and to be replaced in torch's own tutorials
(pytorch/pytorch issue 155065, pytorch/tutorials issue 3727); none takes a number for each pair with a gradient.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from graphgps_kmip.attention.context import GraphContext, check_bounds
from graphgps_kmip.attention.dense import tiles_of
from graphgps_kmip.common.host_copies import host_copy, remember
from graphgps_kmip.common.triton_check import power_above, triton_can_run
from graphgps_kmip.errors import InputError
from graphgps_kmip.native import switched_off

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LARGEST_DIM = 128  # channels of a head: tiles of queries, keys, values and their gradients stay in registers
Biases = tuple[Tensor | None, Tensor | None, Tensor | None]  # key_bias (N, H), theta and phi (H, P)
NO_BIASES: Biases = (None, None, None)


def can_run(qkv: Tensor, num_heads: int) -> bool:
    """Whether the kernels support queries, keys and values like these (N, 3 H D): on a GPU where the check passes."""
    fits = qkv.dtype in DTYPES and 0 < qkv.size(1) <= 3 * num_heads * LARGEST_DIM and num_heads < 2**16
    return fits and not switched_off() and triton_can_run(qkv.device, _check)


def full_attention_forward(
    qkv: Tensor, ptr: Tensor, num_heads: int, scale: float, dropout: float, seed: int, biases: Biases = NO_BIASES
) -> tuple[Tensor, Tensor]:
    """Return the output, and the logarithm of each query's sum of exponentials (+inf for a query without pairs).

    Args:
        qkv (Tensor): queries, keys and values of all heads, side by side; computed in float32 at least.
        ptr (Tensor): first node of each graph, and N at the end; the host knows it, or waits for it.
        num_heads (int): H.
        scale (float): factor of the inner products.
        dropout (float): probability to drop a weight.
        seed (int): of what is dropped.
        biases (tuple, optional): key_bias, theta and phi of `pair_attention`. (default: none)

    Shapes:
        qkv (N, 3 H D), ptr (B+1,) -> (N, H D), (N, H).

    Raises:
        ValueError: the boundaries of the graphs are not those of these nodes, or a graph is too large.
    """
    from graphgps_kmip.attention.triton_full_attention_kernels import forward_kernel  # triton is optional

    qkv = qkv.contiguous()
    out = qkv.new_empty(len(qkv), qkv.size(1) // 3)
    lse = qkv.new_empty(len(qkv), num_heads, dtype=torch.promote_types(qkv.dtype, torch.float32))
    inputs, constants = _arguments(qkv, ptr, num_heads, scale, dropout, biases)
    programs = len(inputs[4]), num_heads
    if len(qkv):
        with torch.cuda.device_of(qkv):
            forward_kernel[programs](*inputs, out, lse, _num_pairs(biases), seed, **constants)
    return out, lse


def full_attention_backward(
    grad_out: Tensor, qkv: Tensor, ptr: Tensor, out: Tensor, lse: Tensor, num_heads: int, scale: float, dropout: float,
    seed: int, biases: Biases = NO_BIASES, needed: tuple[bool, bool, bool] = (False, False, False),
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return the gradients of qkv and of those of key_bias, theta and phi that are needed; others are None."""
    from graphgps_kmip.attention import triton_full_attention_kernels as kernels  # triton is optional

    qkv, grad_out = qkv.contiguous(), grad_out.contiguous()
    grad_qkv = torch.empty_like(qkv)
    grads = [torch.empty_like(one).contiguous() if need else None for one, need in zip(biases, needed, strict=True)]
    delta = (grad_out.to(lse.dtype) * out).unflatten(1, (num_heads, -1)).sum(-1)
    inputs, constants = _arguments(qkv, ptr, num_heads, scale, dropout, biases)
    programs, sizes = (len(inputs[4]), num_heads), (_num_pairs(biases), seed)
    asked = {f"GRAD_{name}": need for name, need in zip(("KEY_BIAS", "THETA", "PHI"), needed, strict=True)}
    if len(qkv):
        results = (qkv if one is None else one for one in grads)
        with torch.cuda.device_of(qkv):
            kernels.backward_keys_kernel[programs](
                *inputs, grad_out, lse, delta, grad_qkv, *results, *sizes, **constants, **asked
            )
            kernels.backward_queries_kernel[programs](*inputs, grad_out, lse, delta, grad_qkv, *sizes, **constants)
    return grad_qkv, *grads


def _arguments(
    qkv: Tensor, ptr: Tensor, num_heads: int, scale: float, dropout: float, biases: Biases
) -> tuple[list[Tensor], dict[str, object]]:
    """Tensors that all kernels read, and their constants."""
    dim, bounds = qkv.size(1) // (3 * num_heads), host_copy(ptr)
    check_bounds(bounds.tolist(), len(qkv))
    largest = int(bounds.diff().max()) if len(bounds) > 1 else 0
    has_pairs = biases[1] is not None or biases[2] is not None
    if largest * max(largest if has_pairs else 0, qkv.size(1)) >= 2**31:
        raise InputError(
            f"full attention on a GPU: a graph of {largest} nodes has more than 2^31 pairs, or channels in all nodes: "
            "train on parts of the graph, or with an attention that has no pairs, such as kMIP"
        )
    width, tile = max(16, power_above(dim)), max(16, min(_largest_tile(qkv, dim, has_pairs), power_above(largest)))
    graph, _, starts = tiles_of(ptr, bounds.diff(), tile)
    pair_ptr = torch.cat([ptr.new_zeros(1), ptr.diff().square().cumsum(0)])
    given = (qkv if one is None else one.contiguous() for one in biases)
    constants = {
        "SCALE": scale, "DROPPED": int(dropout * 2**32), "KEPT_PART": 1.0 - dropout, "H": num_heads, "D": dim,
        "WIDTH": width, "TILE": tile, "PRECISION": _precision(qkv.dtype), "num_warps": 4, "num_stages": 2,
        **{f"HAS_{name}": one is not None for name, one in zip(("KEY_BIAS", "THETA", "PHI"), biases, strict=True)},
    }  # fmt: skip
    return [qkv, *given, graph, starts[:-1].contiguous(), ptr.contiguous(), pair_ptr], constants


def _largest_tile(qkv: Tensor, dim: int, has_pairs: bool) -> int:
    """The largest tile with hardly any spills, by the machine code (`python -m run.bench.gpu_kernels`)."""
    if qkv.dtype == torch.float64 or (qkv.dtype == torch.float32 and dim > 64):
        return 16
    return 32 if has_pairs or qkv.dtype == torch.float32 or dim > 64 else 64


def _precision(dtype: torch.dtype) -> str:
    """How tensor cores compute products of float32: to its own precision, unless the user allows less."""
    if dtype != torch.float32:
        return "ieee"
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _num_pairs(biases: Biases) -> int:
    return next((one.size(1) for one in biases[1:] if one is not None), 0)


def _check(device: torch.device) -> None:
    """Compare forward and backward with the plain form: several tiles, a graph without nodes, all biases, dropout."""
    from graphgps_kmip.attention import pair_attention as plain  # which imports this module

    generator = torch.Generator().manual_seed(0)
    ptr = torch.tensor([0, 90, 90, 91, 131])
    context = GraphContext(torch.repeat_interleave(ptr.diff()).to(device), remember(ptr.to(device), ptr))
    shapes = (131, 120), (131, 2), (2, context.num_pairs), (2, context.num_pairs), (131, 40)
    *given, grad_out = (torch.randn(shape, generator=generator).to(device) for shape in shapes)
    settings = (2, 0.2, 0.3, 2**61 + 7)
    out, lse = full_attention_forward(given[0], context.ptr, *settings, tuple(given[1:]))
    found = full_attention_backward(
        grad_out, given[0], context.ptr, out, lse, *settings, tuple(given[1:]), (True, True, True)
    )
    exact = [one.double().requires_grad_() for one in given]
    thin = partial(plain.drop_as_the_kernel, dropout=0.3, seed=2**61 + 7)
    expected = plain.plain_pair_attention(*exact, context=context, num_heads=2, scale=0.2, thin=thin)
    wanted = torch.autograd.grad(expected, exact, grad_out.double())
    for one, other in zip((out, *found), (expected, *wanted), strict=True):
        largest = float(other.detach().abs().max())  # the user may allow less precision than float32's
        torch.testing.assert_close(one.double(), other, rtol=1e-2, atol=1e-2 * largest)
