"""Numbers that change while a model is trained."""

from __future__ import annotations


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
