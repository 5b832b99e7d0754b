"""Search among keys of each graph that are drawn at random: an ablation of the thesis (``random_attention``).

Differs from the public code in what it leaves open: a graph keeps at least one key.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.head_arguments import check_share
from graphgps_kmip.attention.key_selection import KeySelection
from graphgps_kmip.search import topk_inner_product


class RandomKeys(KeySelection):
    """The k best of some keys that are drawn at random: ``KMIPAttention``'s ``selection`` in an ablation of the thesis.

    They are drawn again in each call, in eval mode too, by torch's generator (see `draw_keys`).

    Args:
        random_fraction: share of a graph's nodes that is drawn, in (0, 1].

    Raises:
        ValueError: the share is out of its range.
    """

    def __init__(self, random_fraction: float = 0.1) -> None:
        super().__init__()
        self.random_fraction = check_share("random_fraction", random_fraction)

    def forward(
        self, q: Tensor, k: Tensor, context: GraphContext, num_keys: int, backend: str = "auto"
    ) -> tuple[Tensor, Tensor]:
        """Draw, and search among what was drawn; see `KeySelection`."""
        return topk_of_random_keys(q, k, context, num_keys, self.random_fraction, backend)

    def extra_repr(self) -> str:
        """Say the share."""
        return f"random_fraction={self.random_fraction}"


def topk_of_random_keys(
    q: Tensor, k: Tensor, context: GraphContext, num_keys: int, fraction: float, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Find the keys of largest inner product among those of `draw_keys`, which all queries of a graph and head share.

    Shapes:
        q and k (H, N, D); index (nodes, -1: missing) and score (-inf: missing) (H, N, K), with K = num_keys, or what
        is drawn from the largest graph where that is less.
    """
    keys, ptr = draw_keys(context, k.size(0), fraction)
    drawn = k.gather(1, keys[..., None].expand(-1, -1, k.size(-1)))  # (H, M, D)
    most = max(1, int(context.max_nodes * fraction))  # that a graph has
    index, score = topk_inner_product(q, drawn, context.ptr, ptr, min(num_keys, most), backend)
    nodes = keys.gather(1, index.clamp(min=0).flatten(1)).view_as(index)
    return nodes.masked_fill(index < 0, -1), score


def draw_keys(context: GraphContext, num_heads: int, fraction: float) -> tuple[Tensor, Tensor]:
    """Draw ``floor(n * fraction)`` of the n nodes of each graph, at least one, for each head, by torch's generator.

    Every subset of that size is equally likely.

    Args:
        context: the graphs.
        num_heads: heads H.
        fraction: share of the nodes, in (0, 1].

    Shapes:
        returns nodes (H, M), graph by graph, and the first of each graph among them, with M at the end, (B+1,).
    """
    order = torch.rand(num_heads, len(context.batch), device=context.batch.device).argsort(dim=1)
    order = order.gather(1, context.batch[order].argsort(dim=1, stable=True))  # graph by graph, in random order inside
    count = torch.minimum((context.sizes.double() * fraction).long().clamp(min=1), context.sizes)
    place = torch.arange(len(context.batch), device=order.device) - context.ptr[context.batch]
    ptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
    return order[:, place < count[context.batch]], ptr
