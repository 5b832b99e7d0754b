"""Which keys of its graph a query attends to in k-MIP attention: those of largest inner product, or another choice.

`KMIPAttention` asks one of these modules, which have no parameters. Beside the choice of the papers, `BestKeys`, stand
`graphgps_kmip.attention.random_keys`, ``diversity`` and ``schedule``; one may hand on what another one chose (`among`).
"""

from __future__ import annotations

from torch import Tensor, nn

from graphgps_kmip.attention.context import GraphContext
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
