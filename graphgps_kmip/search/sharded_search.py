"""Exact k-MIP search over nodes that are sharded over processes: keys stay, queries visit, candidates come back.

The K best keys of all shards are among the K best of each shard, so merging lists of K candidates is exact in any
order. A step sends the queries straight to the rank whose keys they meet and their candidates straight back: a ring
that carries the lists along would send as many bytes, and one more hop to bring them home.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphgps_kmip.search.dispatch import topk_inner_product
from graphgps_kmip.search.search_memo import remembered
from graphgps_kmip.search.shards import Shards, index_dtype


@remembered
def topk_over_shards(
    q: Tensor, k: Tensor, shards: Shards, num_keys: int, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Find, for each query of this rank, the keys of its graph on all ranks with the largest inner products, exactly.

    As ``topk_inner_product``, with the rows of the whole batch as index; scores of halves in float32. Of equal scores
    any may come first, the same in each run with the same shards. Memory beside the result: one visiting shard.
    A step that no pair of ranks needs, for their graphs end inside their shards, is left out by all.

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
    """Search keys whose first has the global row ``start``: rows first, (n, H, D) -> (n, H, K), wide scores."""
    wide = torch.promote_types(q.dtype, torch.float32)
    heads = (tensor.transpose(0, 1).to(wide) for tensor in (q, k))
    index, score = topk_inner_product(*heads, ptr, ptr, num_keys, backend)
    index = torch.where(index < 0, index, index + start).to(dtype)
    return index.transpose(0, 1).contiguous(), score.transpose(0, 1).contiguous()


def _is_empty(rows: slice) -> bool:
    return rows.start == rows.stop
