"""The ways of selected (query, key) pairs between the process of the query and that of the key, and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from graphgps_kmip.search.shards import Shards, index_dtype

SLOTS_AT_ONCE = 2**18  # slots whose keys or values are gathered at a time: 16 MiB at 16 channels of float32


@dataclass(frozen=True, eq=False)
class Route:
    """The way of each selected pair to the rank of its key; a visit is one query (of one head) at one rank.

    Args:
        slot: for each pair that leaves, in order of rank, its place in the flat (n * H, K) lists.
        visitor: for each visit that leaves, its row in the flat queries.
        sent: visits, and pairs, that go to each rank.
        row: for each pair that came, its row in the flat keys of this rank.
        visit: for each pair that came, its visit.
        first: for each visit that came, its first pair.
        received: visits, and pairs, that came from each rank.

    Shapes:
        slot (S,), visitor (V,), row and visit (S',), first (V',).
    """

    shards: Shards
    slot: Tensor
    visitor: Tensor
    sent: tuple[list[int], list[int]]
    row: Tensor
    visit: Tensor
    first: Tensor
    received: tuple[list[int], list[int]]

    @classmethod
    def of(cls, index: Tensor, shards: Shards) -> Route:
        """Sort the pairs by rank and tell each rank what comes: index (n, H, K) of global rows, -1 where missing."""
        num_rows, num_heads, num_keys = index.shape
        num_queries = max(1, num_rows * num_heads)
        starts = torch.tensor(shards.starts, device=index.device)
        owner = torch.bucketize(index.long(), starts[1:], right=True).masked_fill(index < 0, shards.count).flatten()
        slot = owner.argsort(stable=True)[: int((owner < shards.count).sum())]
        owner = owner[slot]
        key = index.flatten()[slot] - starts[owner]
        row = key * num_heads + slot // num_keys % num_heads
        visits, length = (owner * num_queries + slot // num_keys).unique_consecutive(return_counts=True)
        counted = [at.bincount(minlength=shards.count) for at in (visits // num_queries, owner)]
        sent = torch.stack(counted, dim=1)  # (R, 2)
        received = shards.exchange(sent, [1] * shards.count, [1] * shards.count)
        (sent_visits, sent_pairs), (came_visits, came_pairs) = sent.T.tolist(), received.T.tolist()
        largest = max(end - start for start, end in zip(shards.starts, shards.starts[1:], strict=False))
        row = shards.exchange(row.to(index_dtype(largest * num_heads)), sent_pairs, came_pairs).long()
        length = shards.exchange(length.to(torch.int32), sent_visits, came_visits).long()
        visit = torch.arange(len(length), device=index.device).repeat_interleave(length, output_size=len(row))
        first = length.cumsum(0) - length
        return cls(
            shards, slot, visits % num_queries, (sent_visits, sent_pairs), row, visit, first, (came_visits, came_pairs)
        )

    def take_visits(self, rows: Tensor) -> Tensor:
        """Send each query's row along with its visits: (n * H, C) -> (V', C)."""
        return self.shards.exchange(rows[self.visitor], self.sent[0], self.received[0])

    def return_visits(self, sums: Tensor, num_rows: int) -> Tensor:
        """Add what the visits bring home: (V', C) -> (n * H, C)."""
        home = self.shards.exchange(sums, self.received[0], self.sent[0])
        return sums.new_zeros(num_rows, sums.size(1)).index_add_(0, self.visitor, home)

    def take_pairs(self, lists: Tensor) -> Tensor:
        """Send each pair's numbers to the rank of its key: (n * H, K, ...) -> (S', ...)."""
        return self.shards.exchange(lists.flatten(0, 1)[self.slot], self.sent[1], self.received[1])

    def return_pairs(self, numbers: Tensor, shape: torch.Size) -> Tensor:
        """Bring a number for each pair home, 0 where there is no pair: (S',) -> (n * H, K)."""
        home = self.shards.exchange(numbers, self.received[1], self.sent[1])
        return numbers.new_zeros(shape.numel()).index_copy_(0, self.slot, home).view(shape)

    def sum_of(self, values: Tensor, weight: Tensor) -> Tensor:
        """Weighted sum of rows for each visit: values (n * H, C), weight (S',) -> (V', C)."""
        return embedding_bag(self.row, values, self.first, per_sample_weights=weight, mode="sum")

    def dot(self, visitors: Tensor, values: Tensor) -> Tensor:
        """Inner product of each pair: visitors (V', C), values (n * H, C) -> (S',)."""
        pairs = zip(self.visit.split(SLOTS_AT_ONCE), self.row.split(SLOTS_AT_ONCE), strict=True)
        return torch.cat([(visitors[visit] * values[row]).sum(-1) for visit, row in pairs])

    def scatter(self, visitors: Tensor, weight: Tensor, num_rows: int) -> Tensor:
        """Give each key the weighted sum of its visitors: visitors (V', C), weight (S',) -> (n * H, C)."""
        out = visitors.new_zeros(num_rows, visitors.size(1))
        for visit, row, part in zip(*(t.split(SLOTS_AT_ONCE) for t in (self.visit, self.row, weight)), strict=True):
            out.index_add_(0, row, visitors[visit] * part[:, None])
        return out
