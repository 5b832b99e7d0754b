"""FAVOR+: positive orthogonal random features of the softmax kernel (Choromanski et al. 2021, sections 2.3 and 2.4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

EPS = 1e-4  # added to every feature by the reference implementation: no normaliser comes near 0


def default_num_features(dim: int) -> int:
    """Return the reference's number of features for vectors of ``dim`` channels: ``floor(dim ln dim)``, at least 1."""
    return max(1, int(dim * math.log(dim)))


def orthogonal_projection(num_features: int, dim: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw Gaussian vectors that are orthogonal in groups of ``dim`` (section 2.4), for a lower variance.

    Each group is a uniformly random orthogonal basis; the lengths are those of independent Gaussian vectors, so each
    vector by itself is Gaussian. Drawn on the CPU: a seed gives the same vectors on every device.

    Shapes:
        returns (num_features, dim).
    """
    num_groups = -(-num_features // dim)
    basis, upper = torch.linalg.qr(torch.randn(num_groups, dim, dim, generator=generator))
    basis = basis * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # without it the bases are not uniform
    length = torch.randn(num_features, dim, generator=generator).norm(dim=1, keepdim=True)
    return basis.flatten(0, 1)[:num_features] * length


def project(x: Tensor, projection: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``<w_i, x> / D^(1/4)`` for each random vector w_i, and ``|x|^2 / (2 sqrt(D))``.

    The exponential of their difference is the feature: its products average to ``exp(<q, k> / sqrt(D))`` over w.

    Shapes:
        x (..., D), projection (F, D); returns (..., F) and (..., 1).
    """
    x = x / x.size(-1) ** 0.25
    return x @ projection.mT, x.square().sum(-1, keepdim=True) / 2


def positive_features(projected: Tensor, half_norm: Tensor, stabiliser: Tensor) -> Tensor:
    """Return ``exp(projected - half_norm - stabiliser) + EPS``.

    Without the factor ``1 / sqrt(F)`` of the paper, which a quotient cancels. The stabiliser keeps the exponential from
    overflowing; because of EPS it does not cancel entirely, so its gradient is not zero.

    Shapes:
        projected (..., F), half_norm (..., 1), stabiliser broadcast to them; returns (..., F).
    """
    return torch.exp(projected - half_norm - stabiliser) + EPS
