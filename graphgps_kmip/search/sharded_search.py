"""Sharded k-MIP search: exact, over nodes sharded over processes; queries are sent, candidates are returned.

The K best keys of all shards are among the K best of each shard, so merging lists of K candidates is exact in any
order. A step sends queries directly to the rank of the keys and their candidates directly back; a ring that passes
the lists on would send as many bytes and one more hop. `Shards` is the partition of the rows that all ranks agree on,
so that an error of one rank is raised by all.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from graphgps_kmip.search.dispatch import choose, topk_inner_product
from graphgps_kmip.search.problem import DTYPES, NotFinite, SearchProblem, shorten
from graphgps_kmip.search.search_memo import remembered

SOUND, REFUSED, NOT_FINITE = range(3)
# What each rank sends to the others first; all but the first four must be equal.
FACTS = (
    "outcome",
    "rows",
    "the power of two above all values of q",
    "the power of two above all values of k",
    "the dtype of q",
    "the number of heads H",
    "the width D of queries and keys",
    "the width C of values",
    "num_keys",
    "the end of ptr",
    "the checksum of ptr (global rows, of all shards)",
    "whether a gradient is required",
)


@dataclass(frozen=True, eq=False)
class Shards:
    """Partition of the rows of a batch of graphs over ranks; rows are numbered in order of rank.

    Args:
        rank (int): rank of this process in the group.
        starts (list[int]): first row of each rank's shard, and N at the end; a shard may be empty, a graph may span
            shards.
        ptr (Tensor): first row of each graph of the whole batch, and N at the end.
        bounds (list[int]): the same as plain integers.
        group (ProcessGroup or None): process group, None for the default one.

    Shapes:
        starts R + 1 numbers for R ranks, ptr (B+1,).
    """

    rank: int
    starts: list[int]
    ptr: Tensor
    bounds: list[int]
    group: dist.ProcessGroup | None

    @classmethod
    def agree(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        num_keys: int,
        ptr: Tensor | None,
        group: dist.ProcessGroup | None,
        backend: str = "auto",
    ) -> Shards:
        """Check the input of this rank, compare it with that of the others (one small all-gather), and number the rows.

        Shapes:
            q and k (n, H, D), v (n, H, C), ptr (B+1,) of the whole batch.

        Raises:
            ValueError: on every rank if on any; a rank with valid input names the others.
            NotFinite: on every rank, where q or k of some rank is NaN or infinite, or so large that inner products may
                overflow.
        """
        error, facts = None, [0] * len(FACTS)
        try:
            facts = _facts(q, k, v, num_keys, ptr, backend)
        except ValueError as caught:  # if this rank raised here, the others would wait
            error = caught
            facts[0] = NOT_FINITE if isinstance(caught, NotFinite) else REFUSED
        table = _gather(torch.tensor(facts, device=q.device), group)
        if error is not None:
            raise error
        _check_agreement(table)
        _check_range(table, torch.promote_types(q.dtype, torch.float32))
        starts = [0]
        for row in table:
            starts.append(starts[-1] + row[1])
        ptr = torch.tensor([0, starts[-1]], device=q.device) if ptr is None else ptr
        bounds = ptr.tolist()
        if bounds[-1] != starts[-1]:
            raise ValueError(f"ptr must end at {starts[-1]}, the rows of all ranks together, got {shorten(bounds)}")
        return cls(dist.get_rank(group), starts, ptr, bounds, group)

    @property
    def count(self) -> int:
        """Number of ranks R."""
        return len(self.starts) - 1

    def own_ptr(self) -> Tensor:
        """Boundaries, in local rows, of the graphs (and parts of graphs) in this rank's shard."""
        start, end = self.starts[self.rank], self.starts[self.rank + 1]
        first = bisect_right(self.bounds, start) - 1
        last = max(first, bisect_left(self.bounds, end))
        ptr = self.ptr[first : last + 1].clamp(start, end) - start
        return ptr if len(ptr) else self.ptr.new_zeros(1)

    def common(self, one: int, other: int) -> tuple[slice, slice]:
        """Local rows of two different ranks' shards that belong to a graph which has rows in both; empty where none.

        There is at most one such graph, as rows are sorted by graph: the last one of the lower shard.
        """
        low, high = min(one, other), max(one, other)
        if self.starts[low] == self.starts[low + 1] or self.starts[high] == self.starts[high + 1]:
            return slice(0, 0), slice(0, 0)
        graph = bisect_right(self.bounds, self.starts[high]) - 1
        start, end = self.bounds[graph], self.bounds[graph + 1]
        if start >= self.starts[low + 1]:
            return slice(0, 0), slice(0, 0)
        rows = []
        for rank in (one, other):
            first, last = self.starts[rank], self.starts[rank + 1]
            rows.append(slice(max(start, first) - first, min(end, last) - first))
        return rows[0], rows[1]

    def exchange(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Send the first ``sent[0]`` rows to rank 0, the next ``sent[1]`` to rank 1, ...; return the received rows."""
        out = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), received, sent, group=self.group)
        return out

    def swap(self, rows: Tensor, to: int, source: int, num_rows: int) -> Tensor:
        """Send all rows to one rank and return the ``num_rows`` received from another."""
        sent, received = [0] * self.count, [0] * self.count
        sent[to], received[source] = rows.size(0), num_rows
        return self.exchange(rows, sent, received)


def index_dtype(num_rows: int) -> torch.dtype:
    """Return the narrowest of int32 and int64 that numbers so many rows: half of the sent bytes are indices."""
    return torch.int32 if num_rows < 2**31 else torch.int64


def _facts(q: Tensor, k: Tensor, v: Tensor, num_keys: int, ptr: Tensor | None, backend: str) -> list[int]:
    """Check the input of this rank and return the numbers that ``FACTS`` names."""
    check_heads(q, k, v)
    problem = SearchProblem.of(q.transpose(0, 1), k.transpose(0, 1), None, None, num_keys)
    choose(problem, backend)
    bounds = [-1] if ptr is None else ptr.tolist()
    if ptr is not None:
        if ptr.dim() != 1 or ptr.dtype != torch.int64 or ptr.device != q.device:
            raise ValueError(
                f"ptr must be (B+1,) of torch.int64 on {q.device}, "
                f"got shape {tuple(ptr.shape)} of {ptr.dtype} on {ptr.device}"
            )
        if not bounds or bounds[0] != 0 or bounds != sorted(bounds):
            raise ValueError(f"ptr must increase from 0 to the rows of all ranks together, got {shorten(bounds)}")
    gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, k, v))
    widths = [q.size(1), q.size(2), v.size(2)]
    checksum = zlib.crc32(repr(bounds).encode())
    powers = [math.frexp(largest)[1] for largest in (problem.largest_q, problem.largest_k)]
    return [SOUND, q.size(0), *powers, DTYPES.index(q.dtype), *widths, num_keys, bounds[-1], checksum, int(gradient)]


def check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse queries, keys and values that do not fit together.

    Shapes:
        q and k (n, H, D), v (n, H, C).

    Raises:
        ValueError: a shape, dtype or device that does not fit.
    """
    if q.dim() != 3 or k.shape != q.shape or v.dim() != 3 or v.shape[:2] != q.shape[:2]:
        raise ValueError(
            "q and k must be (n, H, D) and v (n, H, C), with the same rows and heads, "
            f"got {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if v.dtype != q.dtype or v.device != q.device:
        raise ValueError(f"v must be of {q.dtype} on {q.device} as q is, got {v.dtype} on {v.device}")


def _gather(facts: Tensor, group: dist.ProcessGroup | None) -> list[list[int]]:
    table = [torch.empty_like(facts) for _ in range(dist.get_world_size(group))]
    dist.all_gather(table, facts, group=group)
    return torch.stack(table).tolist()


def _check_agreement(table: list[list[int]]) -> None:
    """Raise on every rank if one refused its input or two sent different facts."""
    outcomes = [row[0] for row in table]
    if any(outcomes):
        refused = ", ".join(str(rank) for rank, outcome in enumerate(outcomes) if outcome)
        kind = NotFinite if NOT_FINITE in outcomes else ValueError
        raise kind(f"rank {refused} refused its shard: see the error of that rank")
    for name, values in list(zip(FACTS, zip(*table, strict=True), strict=True))[4:]:
        if len(set(values)) > 1:
            shown = [DTYPES[value] for value in values] if "dtype" in name else list(values)
            raise ValueError(f"{name} must be the same on every rank, got {shown} on ranks 0 to {len(table) - 1}")


def _check_range(table: list[list[int]], dtype: torch.dtype) -> None:
    """Raise on every rank if the product of a query of one rank and a key of another may overflow."""
    dim = table[0][FACTS.index("the width D of queries and keys")]
    q, k = (max(row[column] for row in table) for column in (2, 3))  # all values are below 2^q and 2^k
    if math.log2(max(1, dim)) + q + k > math.log2(torch.finfo(dtype).max):
        raise NotFinite(
            f"queries up to 2^{q} and keys up to 2^{k} on these ranks: their inner products may overflow "
            f"{str(dtype).removeprefix('torch.')}; normalise them, or lower the learning rate"
        )


@remembered(num_rows=lambda q, k, shards, *_, **__: shards.starts[-1])  # noqa: ARG005
def topk_over_shards(
    q: Tensor, k: Tensor, shards: Shards, num_keys: int, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Find, for each query of this rank, the keys of its graph on all ranks with the largest inner products, exactly.

    As ``topk_inner_product``, with the rows of the whole batch as index; scores in float32 at least. Equal scores
    are in any order, the same in every run with the same shards. Memory beside the result: the queries of one shard.
    A step that no pair of ranks needs, as no graph spans their shards, is skipped by all.

    Shapes:
        q and k (n, H, D); index (n, H, K), int32 below 2^31 rows, -1 where missing, score (n, H, K).
    """
    start, dtype = shards.starts[shards.rank], index_dtype(shards.starts[-1])
    keys, ptr = k.detach(), shards.own_ptr()
    index, score = _search(q.detach(), keys, start, dtype, num_keys, backend, ptr)
    for step in range(1, shards.count):
        if all(_is_empty(shards.common(rank, (rank + step) % shards.count)[0]) for rank in range(shards.count)):
            continue
        host, guest = (shards.rank + step) % shards.count, (shards.rank - step) % shards.count
        leaving, _ = shards.common(shards.rank, host)
        coming, met = shards.common(guest, shards.rank)
        visitors = shards.swap(q.detach()[leaving], host, guest, coming.stop - coming.start)
        found = _search(visitors, keys[met], start + met.start, dtype, num_keys, backend)
        back = [shards.swap(lists, guest, host, leaving.stop - leaving.start) for lists in found]
        both = torch.cat([score[leaving], back[1]], dim=-1)  # (n, H, 2 K)
        score[leaving], at = both.topk(num_keys)
        index[leaving] = torch.cat([index[leaving], back[0]], dim=-1).gather(-1, at)
    return index, score


def _search(
    q: Tensor, k: Tensor, start: int, dtype: torch.dtype, num_keys: int, backend: str, ptr: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Search keys whose first one has the global row ``start``: (n, H, D) -> (n, H, K), scores in float32 at least."""
    wide = torch.promote_types(q.dtype, torch.float32)
    heads = (tensor.transpose(0, 1).to(wide) for tensor in (q, k))
    index, score = topk_inner_product(*heads, ptr, ptr, num_keys, backend)
    index = torch.where(index < 0, index, index + start).to(dtype)
    return index.transpose(0, 1).contiguous(), score.transpose(0, 1).contiguous()


def _is_empty(rows: slice) -> bool:
    return rows.start == rows.stop
