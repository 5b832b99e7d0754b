"""The cases of sharded k-MIP attention that the processes run and the test compares, and what is right for them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from graphgps_kmip.attention.sparse_attention import sparse_attention
from graphgps_kmip.search import topk_inner_product

RAGGED = (0, 5, 5, 6, 30, 30, 37)  # a graph over several shards, one of a single node, two without any


@dataclass(frozen=True)
class Case:
    """One call on all ranks: rows of each rank, boundaries of the graphs, and what is peculiar to some rank."""

    sizes: tuple[int, ...]
    ptr: tuple[int, ...] | None = None
    num_keys: int = 4
    heads: int = 2
    dtype: torch.dtype = torch.float64
    keys: str = "random"
    dropout: float = 0.0
    backend: str = "auto"
    grad: bool = True
    on_rank: dict[int, dict[str, Any]] = field(default_factory=dict)  # rank -> q, k, v edits and other arguments

    @property
    def bounds(self) -> list[int]:
        return list(self.ptr or (0, sum(self.sizes)))

    def tensors(self) -> list[Tensor]:
        """q, k, v and the cotangent of all ranks' rows."""
        generator = torch.Generator().manual_seed(sum(self.sizes) + 100 * self.heads)
        rows = sum(self.sizes)
        q, k, v, cotangent = (
            torch.randn(rows, self.heads, width, dtype=torch.float64, generator=generator).to(self.dtype)
            for width in (3, 3, 5, 5)
        )
        if self.keys == "duplicate":  # each key and its value stand three times, far apart
            k, v = (tensor[torch.arange(rows) % (rows // 3)] for tensor in (k, v))
        if self.keys == "hub":  # the first key of each head is everybody's best
            q, k = q.abs(), torch.cat([k[:1].abs() + 9, k[1:]])
        return [q, k, v, cotangent]

    def masks(self) -> Tensor | None:
        """The weights that dropout keeps, (N, H, K): each rank draws its own."""
        if not self.dropout:
            return None
        kept = []
        for rank, rows in enumerate(self.sizes):
            torch.manual_seed(rank)
            drawn = torch.rand(rows * self.heads, self.num_keys, dtype=self.dtype)
            kept.append((drawn >= self.dropout).view(rows, self.heads, self.num_keys))
        return torch.cat(kept)


def cases(world: int) -> dict[str, Case]:
    """The cases of a group; rows, shard borders and graphs differ, the names are the same."""
    even = {1: (37,), 2: (19, 18), 4: (10, 9, 9, 9)}[world]
    hollow = {1: (12,), 2: (0, 12), 4: (0, 8, 0, 4)}[world]
    last = world - 1
    base = Case(even)
    good = {
        "even shards": base,
        "uneven shards": Case({1: (23,), 2: (3, 20), 4: (1, 13, 2, 7)}[world], num_keys=6),
        "empty shards": Case(hollow),
        "an empty last shard": Case(hollow[::-1]),
        "graphs over the borders": replace(base, ptr=RAGGED),
        "graphs that end at the borders": Case((4,) * world, ptr=tuple(range(0, 4 * world + 1, 4)), num_keys=3),
        "fewer nodes than K": Case({1: (3,), 2: (2, 1), 4: (1, 0, 1, 1)}[world], num_keys=5),
        "small graphs and empty shards": Case(hollow, ptr=(0, 0, 2, 9, 12, 12), num_keys=5),
        "no node at all": Case((0,) * world),
        "duplicate keys": Case({1: (36,), 2: (18, 18), 4: (9, 9, 9, 9)}[world], keys="duplicate", num_keys=7),
        "a hub that all select": replace(base, keys="hub"),
        "one head, one key": replace(base, heads=1, num_keys=1),
        "dropout": replace(base, dropout=0.4),
        "float32": replace(base, dtype=torch.float32),
        "halves": replace(base, dtype=torch.bfloat16),
        "another backend": replace(base, backend="exact", ptr=RAGGED),
        "without gradient": replace(base, grad=False),
    }
    if world == 1:
        return good  # nobody to disagree with
    width = {name: (lambda tensor: torch.cat([tensor, tensor], -1)) for name in "qk"}
    wrong = {
        "another D": {last: width},
        "another C": {last: {"v": lambda v: v[..., :2]}},
        "another K": {last: {"num_keys": 3}},
        "another dtype": {last: {name: (lambda tensor: tensor.float()) for name in "qkv"}},
        "another ptr": {last: {"ptr": (0, 6, 37)}},
        "no ptr": {last: {"ptr": None}},
        "a ptr of the shard": {rank: {"ptr": (0, 5)} for rank in range(world)},
        "a falling ptr": {last: {"ptr": (0, 7, 5, 37)}},
        "a ptr of floats": {last: {"ptr": (0.0, 37.0)}},
        "NaN in q": {last: {"q": lambda q: q * torch.nan}},
        "infinity in k": {0: {"k": lambda k: k / 0}},
        "a flat v": {last: {"v": lambda v: v.flatten(1)}},
        "a short v": {0: {"v": lambda v: v[1:]}},
        "a v of another dtype": {0: {"v": lambda v: v.float()}},
        "no keys wanted": {last: {"num_keys": 0}},
        "an unknown backend": {last: {"backend": "chunky"}},
        "a gradient on one rank": {last: {"requires_grad": False}},
    }
    return good | {name: replace(base, ptr=(0, 5, 37), on_rank=on_rank) for name, on_rank in wrong.items()}


@cache
def unsharded(world: int, name: str) -> dict[str, Any]:
    """The same case on all rows in this process."""
    case = cases(world)[name]
    *inputs, cotangent = case.tensors()
    q, k, v = (tensor.requires_grad_() for tensor in inputs)
    ptr = torch.tensor(case.bounds)
    wide = torch.promote_types(case.dtype, torch.float32)
    heads = [tensor.detach().transpose(0, 1).to(wide) for tensor in (q, k)]
    index, score = topk_inner_product(*heads, ptr, ptr, case.num_keys, case.backend)
    keep = case.masks()
    out = sparse_attention(q, k, v, index, score) if keep is None else masked(q, k, v, index, keep, case.dropout)
    grad = torch.autograd.grad(out, (q, k, v), cotangent)
    return {"index": index.transpose(0, 1), "score": score.transpose(0, 1), "out": out.detach(), "grad": grad}


def masked(q: Tensor, k: Tensor, v: Tensor, index: Tensor, keep: Tensor, dropout: float) -> Tensor:
    """Sparse attention by its formula with given masks, for plain autograd: keep (N, H, K)."""
    keys, values = (torch.stack([tensor[at, head] for head, at in enumerate(index)], dim=1) for tensor in (k, v))
    weight = torch.softmax(torch.einsum("nhd,nhkd->nhk", q, keys) / math.sqrt(q.size(-1)), dim=-1)
    return torch.einsum("nhk,nhkc->nhc", weight * keep / (1 - dropout), values)
