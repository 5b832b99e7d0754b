r"""Top-k softmax tends to hardmax as scores are scaled up: the step that theorem 2 rests on (k-MIP paper, appendix C).

``softmax(T_k(lambda Z)) -> hardmax(Z)`` row by row, where hardmax shares the weight evenly among the maxima of a row.
That needs k to be at least their number m: the top-k of m > k tied maxima keeps only k of them, whatever lambda is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphgps_kmip.errors import InputError


def topk_softmax(z: Tensor, k: int) -> Tensor:
    """Return softmax over the k largest entries of each row, 0 elsewhere; among ties, whichever `torch.topk` keeps.

    Args:
        z: scores.
        k: entries kept; of shorter rows, all. Gradients flow to those kept.

    Shapes: (..., N) -> (..., N).

    Raises:
        ValueError: k < 1.
    """
    if k < 1:
        raise InputError(f"k must be >= 1, got {k}")
    kept, index = z.topk(min(k, z.size(-1)), dim=-1)
    return torch.zeros_like(z).scatter(-1, index, kept.softmax(-1))


def hardmax(z: Tensor) -> Tensor:
    """Return 1 / m at each of the m maxima of a row, 0 elsewhere: (..., N) -> (..., N)."""
    largest = (z == z.amax(-1, keepdim=True)).to(z.dtype)
    return largest / largest.sum(-1, keepdim=True)


def hardmax_error(z: Tensor, k: int, scale: float) -> Tensor:
    """Return the L1 distance between top-k softmax of ``scale * z`` and hardmax of z, by row: (..., N) -> (...)."""
    return (topk_softmax(scale * z, k) - hardmax(z)).abs().sum(-1)


def hardmax_bound(z: Tensor, k: int, scale: float) -> Tensor:
    r"""Return what `hardmax_error` cannot exceed, of each row: (..., N) -> (...).

    With m maxima, k' = min(k, N) kept entries and the gap g between the maximum and the next value it is

    .. math:: 2 (1 - m / Z) \le 2 (k' - m) e^{-\lambda g} / m, \qquad Z = m + (k' - m) e^{-\lambda g}

    for m <= k'; the error falls at least as fast as exp(-lambda g). For m > k' it is 2 (1 - k' / m) at every lambda.
    """
    top = z.amax(-1, keepdim=True)
    count = (z == top).sum(-1).to(z.dtype)
    kept = torch.full_like(count, min(k, z.size(-1)))
    gap = (top - z).masked_fill(z == top, torch.inf).amin(-1)  # infinite where all entries are maxima
    rest = (kept - count).clamp(min=0) * torch.exp(-scale * gap)
    return torch.where(count > kept, 2 * (1 - kept / count), 2 * rest / (count + rest))
