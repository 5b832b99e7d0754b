"""k annealing of k-MIP attention: k decreases during training, against the papers' "supervision starvation".

The schedule is not from the papers, which keep k constant.
"""

from __future__ import annotations

from torch import Tensor

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.head_arguments import check_share
from graphgps_kmip.attention.key_selection import BestKeys, KeySelection
from graphgps_kmip.errors import InputError


class AnnealedKeys(KeySelection):
    """Key selection whose k decreases from k_start to the attention's k with ``context.progress``: see `annealed`.

    Evaluations during training use the current k. Where the progress is not set, training mode uses k_start, and eval
    mode the final k, so that a trained model used from Python has it.

    Args:
        k_start (int): k before training, at least that of the attention.
        anneal_until (float, optional): share of the training in which k decreases, in (0, 1]. (default: 0.5)
        among (KeySelection, optional): selection of the keys; None: `BestKeys`. (default: None)

    Raises:
        ValueError: one of the arguments is out of its range; in the forward pass, if k_start is less than k.
    """

    def __init__(self, k_start: int, anneal_until: float = 0.5, among: KeySelection | None = None) -> None:
        super().__init__(BestKeys() if among is None else among)
        self.k_start, self.anneal_until = k_start, check_share("anneal_until", anneal_until)

    def num_keys(self, k: int, context: GraphContext) -> int:
        """Return the current number of keys per query."""
        check_start(self.k_start, k)
        start, end = (self.among.num_keys(number, context) for number in (self.k_start, k))
        return annealed(start, end, context.progress_in(self.training), self.anneal_until)

    def forward(
        self, q: Tensor, k: Tensor, context: GraphContext, num_keys: int, backend: str = "auto"
    ) -> tuple[Tensor, Tensor]:
        """Select that many keys; see `KeySelection`."""
        return self.among(q, k, context, num_keys, backend)

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"k_start={self.k_start}, anneal_until={self.anneal_until}"


def annealed(start: int, end: int, progress: float, until: float) -> int:
    r"""Return an integer that decreases from start to end, linearly in its logarithm, and is constant after ``until``.

    .. math:: \mathrm{round}(start^{1 - s} \, end^s), \qquad s = \min(1, progress / until)

    Args:
        start (int): the number before training.
        end (int): the number from ``until`` on, >= 1.
        progress (float): share of the training that is done, in [0, 1].
        until (float): share of the training in which it changes, in (0, 1].
    """
    share = min(1.0, progress / until)
    return round(start ** (1.0 - share) * end**share)


def check_start(k_start: int, k: int) -> None:
    """Check k_start.

    Raises:
        ValueError: k_start < k.
    """
    if k_start < k:
        raise InputError(f"k_start must be 0 (constant k) or at least k, got {k_start} and k {k}")
