"""A more diverse choice of the keys that a query attends to: ours, for a question that the thesis leaves (section 7.2).

The keys of largest inner product may be near copies of each other. Here a key that points the way of one already taken
counts less: maximal marginal relevance (Carbonell and Goldstein 1998) among the keys that a search found.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.key_selection import BestKeys, KeySelection
from graphgps_kmip.errors import InputError

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
