"""Which keys of its graph a query attends to in k-MIP attention: those of largest inner product, or another choice.

`KMIPAttention` asks one of these modules, which have no parameters. Beside the choice of the papers, `BestKeys`, stand
`graphgps_kmip.attention.key_selection` and ``k_annealing``; one may pass on what another one chose (`among`).

A more diverse choice of the keys that a query attends to: ours, for a question that the thesis leaves (section 7.2).

The keys of largest inner product may be near copies of each other. Here a key that points the way of one already taken
counts less: maximal marginal relevance (Carbonell and Goldstein 1998) among the keys that a search found.

Search among keys of each graph that are drawn at random: an ablation of the thesis (``random_attention``).

Differs from the public code in what it leaves open: a graph keeps at least one key.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.head_arguments import check_share
from graphgps_kmip.errors import InputError
from graphgps_kmip.search import topk_inner_product


class KeySelection(nn.Module):
    """Base of all: ``selection(q, k, context, num_keys, backend) -> (index, score)``, which a subclass defines.

    Args:
        among: what chooses the keys that this one chooses from; None: there is nothing before it.

    Shapes:
        q and k (H, N, D); index (nodes, -1: missing) and score (-inf: missing) (H, N, K), K <= num_keys.
    """

    def __init__(self, among: KeySelection | None = None) -> None:
        super().__init__()
        self.among = among

    @property
    def exact(self) -> bool:
        """Whether the keys are those of largest inner product, so that a search over several processes finds them."""
        return False

    def num_keys(self, k: int, context: GraphContext) -> int:
        """Return how many keys a query gets now, of an attention with k keys."""
        return k if self.among is None else self.among.num_keys(k, context)


class BestKeys(KeySelection):
    """The keys of largest inner product, as in the papers: all of a graph with fewer than k nodes."""

    def __init__(self) -> None:
        super().__init__()

    @property
    def exact(self) -> bool:
        """True."""
        return True

    def forward(
        self, q: Tensor, k: Tensor, context: GraphContext, num_keys: int, backend: str = "auto"
    ) -> tuple[Tensor, Tensor]:
        """Search exactly; see `KeySelection`."""
        most = max(1, context.max_nodes)  # that a graph has
        return topk_inner_product(q, k, context.ptr, context.ptr, min(num_keys, most), backend)


POOL = 2  # candidates for each key that is taken
CHUNK_ENTRIES = 2**22  # of gathered candidates and their cosines, 16 MB of float32 each


class DiverseKeys(KeySelection):
    """k of the best 2k keys that resemble each other less, see `diverse_keys`: ``KMIPAttention``'s ``selection``.

    Args:
        diversity: what a copy of a key that is attended to loses against other keys, in units of the logit; 0 is k-MIP.
        among: what chooses the candidates; None: `BestKeys`.

    Raises:
        ValueError: the diversity is negative or not finite.
    """

    def __init__(self, diversity: float, among: KeySelection | None = None) -> None:
        super().__init__(BestKeys() if among is None else among)
        if not 0.0 <= diversity < math.inf:
            raise InputError(f"diversity must be 0 or more, and finite, got {diversity}")
        self.diversity = diversity

    def forward(
        self, q: Tensor, k: Tensor, context: GraphContext, num_keys: int, backend: str = "auto"
    ) -> tuple[Tensor, Tensor]:
        """Choose among twice as many; see `KeySelection`."""
        index, score = self.among(q, k, context, POOL * num_keys, backend)
        return diverse_keys(index, score, k, num_keys, self.diversity)

    def extra_repr(self) -> str:
        """Say the diversity."""
        return f"diversity={self.diversity}"


@torch.no_grad()
def diverse_keys(index: Tensor, score: Tensor, k: Tensor, num_keys: int, weight: float) -> tuple[Tensor, Tensor]:
    r"""Take some of the candidates of each query, greedily: each time the key j with the largest value.

    .. math:: s_j / \sqrt{D} - weight \cdot \max(0, \max_{i \text{ taken}} \cos(k_i, k_j))

    The first one is always the key of largest inner product; with weight 0, and where no two candidates are within a
    right angle, they are the best ``num_keys``. Costs N * C^2 * D; memory beyond the result is bounded. No gradient.

    Args:
        index: candidates C, -1: missing.
        score: their inner products with the query, by falling score, -inf: missing.
        k: keys.
        num_keys: K.
        weight: what a copy of a key loses, in units of the softmax's logit: it is taken only where its attention weight
            would be e^weight times that of a key at right angles to those taken.

    Shapes:
        index and score (H, N, C), k (H, M, D); returns index and score (H, N, min(K, C)).
    """
    direction = normalize(k, dim=-1)
    num_heads, _, candidates = index.shape
    size = max(1, CHUNK_ENTRIES // max(1, num_heads * candidates * max(candidates, k.size(-1))))
    pairs = zip(index.split(size, dim=1), score.split(size, dim=1), strict=True)
    with torch.autocast(k.device.type, enabled=False):  # it would round the cosines
        slots = [_choose(part, scores / math.sqrt(k.size(-1)), direction, num_keys, weight) for part, scores in pairs]
    slot = torch.cat(slots, dim=1)
    taken = slot.clamp(min=0)
    return (
        index.gather(2, taken).masked_fill(slot < 0, -1),
        score.gather(2, taken).masked_fill(slot < 0, -torch.inf),
    )


def _choose(index: Tensor, logit: Tensor, direction: Tensor, num_keys: int, weight: float) -> Tensor:
    """Slots of the keys taken, -1 where none is left: index and logit (H, n, C), direction (H, M, D) -> (H, n, K)."""
    rows = index.clamp(min=0).flatten(1)[..., None].expand(-1, -1, direction.size(-1))
    candidate = direction.gather(1, rows).unflatten(1, index.shape[1:])  # (H, n, C, D)
    cosine = candidate @ candidate.mT  # (H, n, C, C)
    nearest, slots = torch.zeros_like(logit), []
    for _ in range(min(num_keys, index.size(2))):
        value, slot = (logit - weight * nearest).max(-1, keepdim=True)  # (H, n, 1)
        slots.append(slot.masked_fill(value == -torch.inf, -1))
        nearest = torch.maximum(nearest, cosine.gather(2, slot[..., None].expand_as(cosine[:, :, :1])).squeeze(2))
        logit = logit.scatter(-1, slot, -torch.inf)
    return torch.cat(slots, dim=-1)


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
