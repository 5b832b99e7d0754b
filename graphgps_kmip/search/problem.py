"""The validated input of a k-maximum-inner-product search: what every backend may rely on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from graphgps_kmip.errors import InputError

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class NotFinite(InputError, FloatingPointError):
    """A query or key is NaN or infinite; a training loop takes the FloatingPointError for a run that diverged."""


@dataclass(frozen=True, eq=False)
class SearchProblem:
    """For each query the ``num_keys`` keys of its own graph with the largest inner product, for each head alone.

    Args:
        q: queries, float32 or float64 (halves are widened: their products are exact there), no gradient.
        k: keys, as q.
        ptr_q: first query of each graph, and N at the end.
        ptr_k: first key of each graph, and M at the end.
        num_keys: K, how many keys to find for each query; a graph may have fewer.

    Shapes:
        q (H, N, D), k (H, M, D), ptr_q and ptr_k (B+1,).
    """

    q: Tensor
    k: Tensor
    ptr_q: Tensor
    ptr_k: Tensor
    num_keys: int

    @classmethod
    def of(cls, q: Tensor, k: Tensor, ptr_q: Tensor | None, ptr_k: Tensor | None, num_keys: int) -> SearchProblem:
        """Check the input, flatten the heads, and widen halves to float32.

        Args:
            q: queries; leading dimensions are heads.
            k: keys; leading dimensions as those of q.
            ptr_q: graph boundaries of the queries; None: one graph (then ptr_k must be None too).
            ptr_k: graph boundaries of the keys.
            num_keys: K >= 1.

        Shapes:
            q (..., N, D), k (..., M, D), ptr_q and ptr_k (B+1,) int64.

        Raises:
            ValueError: shapes, dtypes or devices that do not fit together, a ptr that is not one, num_keys < 1.
            NotFinite: a value of q or k is NaN or infinite.
        """
        _check_tensors(q, k)
        if isinstance(num_keys, bool) or not isinstance(num_keys, int) or num_keys < 1:
            raise ValueError(f"num_keys must be an integer >= 1, got {num_keys!r}")
        if (ptr_q is None) != (ptr_k is None):
            raise ValueError("ptr_q and ptr_k must be given together (or neither, for one graph), got only one of them")
        if ptr_q is None or ptr_k is None:
            ptr_q, ptr_k = (torch.tensor([0, t.size(-2)], device=q.device) for t in (q, k))
        dtype = torch.promote_types(q.dtype, torch.float32)
        heads = math.prod(q.shape[:-2])
        flat_q, flat_k = (t.detach().to(dtype).reshape(heads, *t.shape[-2:]) for t in (q, k))
        problem = cls(flat_q, flat_k, ptr_q, ptr_k, num_keys)
        problem._check_graphs()
        return problem

    @property
    def num_heads(self) -> int:
        """Number of heads H."""
        return self.q.size(0)

    @property
    def num_graphs(self) -> int:
        """Number of graphs B."""
        return self.ptr_q.numel() - 1

    @cached_property
    def bounds_q(self) -> list[int]:
        """``ptr_q`` as plain integers, read from the device once."""
        return self.ptr_q.tolist()

    @cached_property
    def bounds_k(self) -> list[int]:
        """``ptr_k`` as plain integers, read from the device once."""
        return self.ptr_k.tolist()

    @cached_property
    def missing(self) -> Tensor:
        """(N, K), True where a query has no such key because its graph has too few."""
        num_keys_of_query = self.ptr_k.diff().repeat_interleave(self.ptr_q.diff(), output_size=self.q.size(1))
        return torch.arange(self.num_keys, device=self.q.device) >= num_keys_of_query[:, None]

    def _check_graphs(self) -> None:
        for name, ptr, bounds, rows in (
            ("ptr_q", self.ptr_q, self.bounds_q, self.q.size(1)),
            ("ptr_k", self.ptr_k, self.bounds_k, self.k.size(1)),
        ):
            if ptr.dim() != 1 or ptr.dtype != torch.int64 or ptr.device != self.q.device:
                raise ValueError(
                    f"{name} must be (B+1,) of torch.int64 on {self.q.device}, "
                    f"got shape {tuple(ptr.shape)} of {ptr.dtype} on {ptr.device}"
                )
            if not bounds or bounds[0] != 0 or bounds[-1] != rows or bounds != sorted(bounds):
                raise ValueError(f"{name} must rise from 0 to {rows} (the rows of {name[-1]}), got {shorten(bounds)}")
        if self.ptr_q.numel() != self.ptr_k.numel():
            raise ValueError(
                "ptr_q and ptr_k must describe the same graphs, "
                f"got shapes {tuple(self.ptr_q.shape)} and {tuple(self.ptr_k.shape)}"
            )


def shorten(numbers: list[int]) -> str:
    """Print a list of numbers in at most ten entries."""
    return str(numbers) if len(numbers) <= 10 else f"[{', '.join(map(str, numbers[:9]))}, ...]"


def _check_tensors(q: Tensor, k: Tensor) -> None:
    if q.dim() < 2 or k.dim() < 2 or q.shape[:-2] != k.shape[:-2] or q.size(-1) != k.size(-1):
        raise ValueError(
            "q and k must be (..., N, D) and (..., M, D) with equal heads and equal D, "
            f"got {tuple(q.shape)} and {tuple(k.shape)}"
        )
    if q.dtype != k.dtype or q.dtype not in DTYPES:
        allowed = ", ".join(str(dtype) for dtype in DTYPES)
        raise ValueError(f"q and k must have the same dtype, one of {allowed}, got {q.dtype} and {k.dtype}")
    if q.device != k.device:
        raise ValueError(f"q and k must be on the same device, got {q.device} and {k.device}")
    for name, tensor in (("q", q), ("k", k)):
        # the extremes carry a NaN along and cost one pass without a temporary tensor
        if tensor.numel() and not torch.stack(torch.aminmax(tensor.detach())).isfinite().all():
            raise NotFinite(
                f"{name} has NaN or infinite values: inner products with them have no order; look at what made them"
            )
