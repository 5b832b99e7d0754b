"""Key selection of k-MIP attention: the k largest inner products (`BestKeys`), diverse keys, or random candidates.

The argument ``selection`` of `KMIPAttention` is one of these modules, which have no parameters; a selection may choose
among the keys of another one (argument ``among``).

* `BestKeys`: the papers' choice, an exact search.
* `DiverseKeys`: maximal marginal relevance (Carbonell and Goldstein 1998) among the best 2k keys, as the best ones may
  be near copies of each other. Not from the papers; for an open question of the thesis (section 7.2).
* `RandomKeys`: the best of a random subset of each graph, an ablation of the thesis (``random_attention``). Differs
  from the public code in that a graph keeps at least one key.
* ``k_annealing.AnnealedKeys``: a k that decreases during training.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.functional import normalize

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.head_arguments import check_share
from graphgps_kmip.errors import InputError
from graphgps_kmip.search import topk_inner_product


class KeySelection(nn.Module):
    """Base class: ``selection(q, k, context, num_keys, backend) -> (index, score)``, which a subclass defines.

    Args:
        among (KeySelection, optional): selection of the candidates; None: all keys of the graph. (default: None)

    Shapes:
        q and k (H, N, D); index (nodes, -1: missing) and score (-inf: missing) (H, N, K), K <= num_keys.
    """

    def __init__(self, among: KeySelection | None = None) -> None:
        super().__init__()
        self.among = among

    def num_keys(self, k: int, context: GraphContext) -> int:
        """Return the current number of keys per query of an attention with k keys."""
        return k if self.among is None else self.among.num_keys(k, context)


class BestKeys(KeySelection):
    """The k keys of largest inner product, as in the papers; all keys of a graph with fewer than k nodes.

    Queries or keys that are not finite raise `NotFinite` on a CPU; elsewhere, where the host would have to wait for the
    answer, all scores are NaN then, and so is the loss.
    """

    def __init__(self) -> None:
        super().__init__()

    def forward(
        self, q: Tensor, k: Tensor, context: GraphContext, num_keys: int, backend: str = "auto"
    ) -> tuple[Tensor, Tensor]:
        """Search exactly; see `KeySelection`."""
        if not is_compiling():  # a traced program is for graphs of any size: it keeps empty slots
            num_keys = min(num_keys, max(1, context.max_nodes))
        return topk_inner_product(q, k, context.ptr, context.ptr, num_keys, backend, read_values=q.device.type == "cpu")


POOL = 2  # candidates per selected key
CHUNK_ENTRIES = 2**22  # of gathered candidates and their cosines, 16 MB of float32 each


class DiverseKeys(KeySelection):
    """k of the best 2k keys, less similar to each other than the best k: see `diverse_keys`.

    Args:
        diversity (float): penalty of a copy of a selected key, in units of the logit; 0 is k-MIP.
        among (KeySelection, optional): selection of the candidates; None: `BestKeys`. (default: None)

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
        """Select among twice as many; see `KeySelection`."""
        index, score = self.among(q, k, context, POOL * num_keys, backend)
        return diverse_keys(index, score, k, num_keys, self.diversity)

    def extra_repr(self) -> str:
        """Return the diversity."""
        return f"diversity={self.diversity}"


@torch.no_grad()
def diverse_keys(index: Tensor, score: Tensor, k: Tensor, num_keys: int, weight: float) -> tuple[Tensor, Tensor]:
    r"""Select some of the candidates of each query greedily: at each step the key j with the largest value.

    .. math:: s_j / \sqrt{D} - weight \cdot \max(0, \max_{i \text{ selected}} \cos(k_i, k_j))

    The first one is always the key of largest inner product; with weight 0, and where no two candidates have a positive
    cosine, the result are the best ``num_keys``. Costs N * C^2 * D; memory beyond the result is bounded. No gradient.

    Args:
        index (Tensor): candidates C, -1: missing.
        score (Tensor): their inner products with the query, in descending order, -inf: missing.
        k (Tensor): keys.
        num_keys (int): K.
        weight (float): penalty of a copy of a key, in units of the softmax's logit: it is selected only if its
            attention weight would be e^weight times that of a key orthogonal to the selected ones.

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
    return (index.gather(2, taken).masked_fill(slot < 0, -1), score.gather(2, taken).masked_fill(slot < 0, -torch.inf))


def _choose(index: Tensor, logit: Tensor, direction: Tensor, num_keys: int, weight: float) -> Tensor:
    """Slots of the selected keys, -1 where none is: index and logit (H, n, C), direction (H, M, D) -> (H, n, K)."""
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
    """The k best of a random subset of each graph's keys: an ablation of the thesis.

    The subset is drawn anew in each call, in eval mode too, by torch's generator (see `draw_keys`).

    Args:
        random_fraction (float, optional): fraction of a graph's nodes in the subset, in (0, 1]. (default: 0.1)

    Raises:
        ValueError: the fraction is out of its range.
    """

    def __init__(self, random_fraction: float = 0.1) -> None:
        super().__init__()
        self.random_fraction = check_share("random_fraction", random_fraction)

    def forward(
        self, q: Tensor, k: Tensor, context: GraphContext, num_keys: int, backend: str = "auto"
    ) -> tuple[Tensor, Tensor]:
        """Draw a subset and search it; see `KeySelection`."""
        return topk_of_random_keys(q, k, context, num_keys, self.random_fraction, backend)

    def extra_repr(self) -> str:
        """Return the fraction."""
        return f"random_fraction={self.random_fraction}"


def topk_of_random_keys(
    q: Tensor, k: Tensor, context: GraphContext, num_keys: int, fraction: float, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Find the keys of largest inner product in the subset of `draw_keys`, which all queries of a graph and head share.

    Shapes:
        q and k (H, N, D); index (nodes, -1: missing) and score (-inf: missing) (H, N, K), with K = num_keys, or what
        is drawn from the largest graph where that is less.
    """
    keys, ptr = draw_keys(context, k.size(0), fraction)
    drawn = k.gather(1, keys[..., None].expand(-1, -1, k.size(-1)))  # (H, M, D)
    largest = max(1, int(context.max_nodes * fraction))  # subset of a graph
    num_keys, reads = min(num_keys, largest), q.device.type == "cpu"
    index, score = topk_inner_product(q, drawn, context.ptr, ptr, num_keys, backend, read_values=reads)
    nodes = keys.gather(1, index.clamp(min=0).flatten(1)).view_as(index)
    return nodes.masked_fill(index < 0, -1), score


def draw_keys(context: GraphContext, num_heads: int, fraction: float) -> tuple[Tensor, Tensor]:
    """Draw ``floor(n * fraction)`` of the n nodes of each graph, at least one, for each head, by torch's generator.

    Every subset of that size is equally likely.

    Args:
        context (GraphContext): the graphs.
        num_heads (int): heads H.
        fraction (float): fraction of the nodes, in (0, 1].

    Shapes:
        returns nodes (H, M), sorted by graph, and the boundaries of the graphs among them, (B+1,).
    """
    order = torch.rand(num_heads, len(context.batch), device=context.batch.device).argsort(dim=1)
    order = order.gather(1, context.batch[order].argsort(dim=1, stable=True))  # by graph, in random order within one
    count = torch.minimum((context.sizes.double() * fraction).long().clamp(min=1), context.sizes)
    place = torch.arange(len(context.batch), device=order.device) - context.ptr[context.batch]
    ptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
    return order[:, place < count[context.batch]], ptr
