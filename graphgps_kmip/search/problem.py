"""SearchProblem: validated input of a k-MIP search (k maximum inner products), on which all backends rely."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from graphgps_kmip.ops.host_copies import host_copy, single_graph
from graphgps_kmip.ops.operators import NotFinite, overflow

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class SearchProblem:
    """For each query the ``num_keys`` keys of its own graph with the largest inner product, separately per head.

    Queries and keys have no gradient, and are float32 or float64: half-precision inputs are widened.
    """

    q: Tensor  # (H, N, D)
    k: Tensor  # (H, M, D)
    ptr_q: Tensor  # (B+1,) first query of each graph, and N at the end
    ptr_k: Tensor  # (B+1,) first key of each graph, and M at the end
    num_keys: int  # K, how many keys to find for each query; a graph may have fewer
    largest_q: float = 0.0  # largest absolute value of q; 0: not known, overflowing inner products are not detected
    largest_k: float = 0.0  # likewise of k

    @classmethod
    def of(
        cls, q: Tensor, k: Tensor, ptr_q: Tensor | None, ptr_k: Tensor | None, num_keys: int, read_values: bool = True
    ) -> SearchProblem:
        """Check the input, flatten the heads, and widen half-precision inputs to float32.

        Arguments, shapes and errors are those of `topk_inner_product`.
        """
        _check_tensors(q, k)
        largest = _largest_values(q, k) if read_values else (0.0, 0.0)
        check_num_keys(num_keys)
        if (ptr_q is None) != (ptr_k is None):
            raise ValueError("ptr_q and ptr_k must be given together (or neither, for one graph), got only one of them")
        if ptr_q is None or ptr_k is None:
            ptr_q, ptr_k = (single_graph(t.size(-2), q.device) for t in (q, k))
        dtype = torch.promote_types(q.dtype, torch.float32)
        heads = math.prod(q.shape[:-2])
        flat_q, flat_k = (t.detach().to(dtype).reshape(heads, *t.shape[-2:]) for t in (q, k))
        problem = cls(flat_q, flat_k, ptr_q, ptr_k, num_keys, *largest)
        problem._check_graphs()
        return problem

    def fits(self, dtype: torch.dtype) -> bool:
        """Whether no inner product, and no part of its sum, can leave the range of a dtype."""
        return self.q.size(-1) * self.largest_q * self.largest_k <= torch.finfo(dtype).max

    def searchable(self) -> SearchProblem:
        """Return the problem for a backend: no more slots than keys, and a dtype in which no sum can overflow."""
        num_keys = min(self.num_keys, max([1, *(end - start for start, end in pairwise(self.bounds_k))]))
        if self.fits(self.q.dtype):
            return self if num_keys == self.num_keys else replace(self, num_keys=num_keys)
        if not self.fits(torch.float64):
            raise overflow(self.largest_q, self.largest_k, torch.float64)
        return replace(self, q=self.q.double(), k=self.k.double(), num_keys=num_keys)

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
        """``ptr_q`` as plain integers, read from the device if the host does not know them (`host_copies`)."""
        return host_copy(self.ptr_q).tolist()

    @cached_property
    def bounds_k(self) -> list[int]:
        """``ptr_k`` as plain integers, as `bounds_q`."""
        return host_copy(self.ptr_k).tolist()

    @cached_property
    def missing(self) -> Tensor:
        """(N, K), True where a query has no such key because its graph has too few."""
        num_keys_of_query = self.ptr_k.diff().repeat_interleave(self.ptr_q.diff(), output_size=self.q.size(1))
        return torch.arange(self.num_keys, device=self.q.device) >= num_keys_of_query[:, None]

    def _check_graphs(self) -> None:
        q = ("ptr_q", self.ptr_q, self.bounds_q, self.q.size(1))
        k = ("ptr_k", self.ptr_k, self.bounds_k, self.k.size(1))
        for name, ptr, bounds, rows in (q, k):
            if ptr.dim() != 1 or ptr.dtype != torch.int64 or ptr.device != self.q.device:
                raise ValueError(
                    f"{name} must be (B+1,) of torch.int64 on {self.q.device}, "
                    f"got shape {tuple(ptr.shape)} of {ptr.dtype} on {ptr.device}"
                )
            if bounds[:1] != [0] or bounds[-1] != rows or bounds != sorted(bounds):
                shown = str(bounds) if len(bounds) <= 10 else f"[{', '.join(map(str, bounds[:9]))}, ...]"
                raise ValueError(f"{name} must increase from 0 to {rows} (the rows of {name[-1]}), got {shown}")
        if self.ptr_q.numel() != self.ptr_k.numel():
            raise ValueError(
                "ptr_q and ptr_k must describe the same graphs, "
                f"got shapes {tuple(self.ptr_q.shape)} and {tuple(self.ptr_k.shape)}"
            )


def check_num_keys(num_keys: int) -> None:
    """Raise a ValueError for a number of keys that is not an integer of at least 1."""
    if isinstance(num_keys, bool) or not isinstance(num_keys, int) or num_keys < 1:
        raise ValueError(f"num_keys must be an integer >= 1, got {num_keys!r}")


def usable(q: Tensor, k: Tensor) -> Tensor:
    """Whether all of q and k is finite and no inner product can overflow their dtype: (), on their device."""
    largest_q, largest_k = (x.detach().abs().amax().double() for x in (q, k))
    return q.size(-1) * largest_q * largest_k <= torch.finfo(q.dtype).max  # False for NaN, too


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


def _largest_values(q: Tensor, k: Tensor) -> tuple[float, float]:
    """Return the largest absolute values of q and k (0 without rows), all of which must be finite."""
    # the extremes carry a NaN along and cost one pass without a temporary tensor
    extremes = [torch.stack(torch.aminmax(x.detach())) if x.numel() else x.new_zeros(2) for x in (q, k)]
    values = torch.cat(extremes).tolist()
    for name, (low, high) in (("q", values[:2]), ("k", values[2:])):
        if not (math.isfinite(low) and math.isfinite(high)):
            raise NotFinite(
                f"{name} has NaN or infinite values: inner products with them have no order; find what produced them"
            )
    return max(map(abs, values[:2])), max(map(abs, values[2:]))
