"""k that falls while a model is trained: ours, for what the papers call supervision starvation."""

from __future__ import annotations

from torch import Tensor

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.head_arguments import check_share
from graphgps_kmip.attention.key_selection import BestKeys, KeySelection
from graphgps_kmip.errors import InputError


class AnnealedKeys(KeySelection):
    """k keys in the end, more while ``context.progress`` grows: see `annealed`.

    Evaluations during the training have the k of their time. Where nobody set the progress it is that of the module's
    mode: the first k in training mode, the final one in eval mode, which is that of a trained model used by hand.

    Args:
        k_start: k before training, at least that of the attention.
        anneal_until: share of the training in which k falls, in (0, 1].
        among: what chooses the keys; None: `BestKeys`.

    Raises:
        ValueError: one of the arguments is out of its range; in the forward pass, if k_start is less than k.
    """

    def __init__(self, k_start: int, anneal_until: float = 0.5, among: KeySelection | None = None) -> None:
        super().__init__(BestKeys() if among is None else among)
        self.k_start, self.anneal_until = k_start, check_share("anneal_until", anneal_until)

    @property
    def exact(self) -> bool:
        """Whether that of what chooses the keys is."""
        return self.among.exact

    def num_keys(self, k: int, context: GraphContext) -> int:
        """Return how many keys a query gets now."""
        check_start(self.k_start, k)
        start, end = (self.among.num_keys(number, context) for number in (self.k_start, k))
        return annealed(start, end, context.progress_in(self.training), self.anneal_until)

    def forward(
        self, q: Tensor, k: Tensor, context: GraphContext, num_keys: int, backend: str = "auto"
    ) -> tuple[Tensor, Tensor]:
        """Choose that many; see `KeySelection`."""
        return self.among(q, k, context, num_keys, backend)

    def extra_repr(self) -> str:
        """Say the arguments."""
        return f"k_start={self.k_start}, anneal_until={self.anneal_until}"


def annealed(start: int, end: int, progress: float, until: float) -> int:
    r"""Return a whole number that falls from start to end, evenly in its logarithm, and stays there.

    .. math:: \mathrm{round}(start^{1 - s} \, end^s), \qquad s = \min(1, progress / until)

    Args:
        start: the number before training.
        end: the number from ``until`` on, >= 1.
        progress: share of the training that is done, in [0, 1].
        until: share of the training in which it changes, in (0, 1].
    """
    share = min(1.0, progress / until)
    return round(start ** (1.0 - share) * end**share)


def check_start(k_start: int, k: int) -> None:
    """Refuse a k_start below k.

    Raises:
        ValueError: as it says.
    """
    if k_start < k:
        raise InputError(f"k_start must be 0 (k stays as it is) or at least k, got {k_start} and k {k}")
