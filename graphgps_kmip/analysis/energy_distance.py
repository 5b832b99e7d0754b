r"""Energy distance between distributions of attention weights, per node (low-width paper, section 5.1 and figure 2).

.. math:: D(X, Y) = 2 E|X - Y| - E|X - X'| - E|Y - Y'|

(Székely and Rizzo 2013), with Euclidean norms, estimated by U-statistics, which can be below 0. The paper does not
define its samples; here one is the vector of weights on a node's incoming edges in one trained network, and the
distances of the nodes are averaged.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from graphgps_kmip.errors import InputError

LOGIT_LIMIT = 8.0  # the paper's: logits of the estimator are clipped to it, those of the baseline uniform up to it
PAIRS = 2**22  # distances that are held at a time


def energy_distances(x: Tensor, y: Tensor, ptr: Tensor, spread_of_y: Tensor | None = None) -> Tensor:
    """Return the energy distance of each node between two samples of weights, in float64.

    Args:
        x (Tensor): Weights of R trainings on the incoming edges of all nodes, those of a node in a row.
        y (Tensor): Weights of S other trainings on the same edges.
        ptr (Tensor): Edges of node i are ``ptr[i]:ptr[i + 1]``.
        spread_of_y (Tensor, optional): ``mean_spread(y, ptr)``, where it is known. (default: ``None``)

    Shapes: x (R, E), y (S, E), ptr (N+1,), returns (N,); 0 of a node without edges.
    """
    spread = mean_spread(y, ptr) if spread_of_y is None else spread_of_y
    return 2 * mean_distance(x, y, ptr) - mean_spread(x, ptr) - spread


def energy_distances_of_point(point: Tensor, y: Tensor, ptr: Tensor, spread_of_y: Tensor | None = None) -> Tensor:
    """Return the energy distance of each node between a constant (E,) and a sample; see `energy_distances`."""
    spread = mean_spread(y, ptr) if spread_of_y is None else spread_of_y
    return 2 * mean_distance(point[None], y, ptr) - spread


def mean_distance(x: Tensor, y: Tensor, ptr: Tensor) -> Tensor:
    """Return the mean of |x - y| over all pairs, for each node: x (R, E), y (S, E), ptr (N+1,) -> (N,), float64."""
    return _sums(x, y, ptr) / (len(x) * len(y))


def mean_spread(x: Tensor, ptr: Tensor) -> Tensor:
    """Return the mean of |x - x'| over all pairs of different trainings, for each node: the U-statistic.

    Shapes: x (R, E), ptr (N+1,), returns (N,), float64.
    """
    if len(x) < 2:
        raise InputError(
            f"energy distance: {len(x)} sample has no spread, which a U-statistic needs: give the weights of 2 or more "
            "trainings (--seeds 2)"
        )
    return _sums(x, x, ptr) / (len(x) * (len(x) - 1))  # a sample is at distance 0 of itself


def uniform_weights(ptr: Tensor) -> Tensor:
    """Return the baseline of equal weights, 1 / degree on every incoming edge; (E,), float64."""
    degree = ptr.diff()
    return torch.repeat_interleave(1 / degree.double(), degree)


def random_weights(ptr: Tensor, num: int, seed: int = 0, limit: float = LOGIT_LIMIT) -> Tensor:
    """Return the baseline of random weights: softmax, over the edges of each node, of uniform logits.

    Args:
        ptr (Tensor): First incoming edge of each node, and E at the end.
        num (int): Number of samples.
        seed (int, optional): Of the draw. (default: ``0``)
        limit (float, optional): Logits are uniform on [-limit, limit]. (default: ``8.0``)

    Shapes: returns (num, E), float64.
    """
    draw = torch.Generator().manual_seed(seed)
    num_edges, degree = int(ptr[-1]), ptr.diff()
    weight = torch.empty(num, num_edges, dtype=torch.float64).uniform_(-limit, limit, generator=draw).exp_()
    node = torch.repeat_interleave(torch.arange(len(degree)), degree)
    total = weight.new_zeros(num, len(degree)).index_add_(1, node, weight)
    return weight.div_(total[:, node])


@torch.no_grad()
def _sums(x: Tensor, y: Tensor, ptr: Tensor) -> Tensor:
    for weights in (x, y):
        if weights.dim() != 2 or weights.size(1) != int(ptr[-1]):
            raise InputError(
                f"energy distance: expected weights of (trainings, {int(ptr[-1])} edges), got {tuple(weights.shape)}: "
                "give those of one attention graph for every training"
            )
    sums = x.new_zeros(len(ptr) - 1, dtype=torch.float64)
    for nodes, edges in _group_by_degree(ptr, max(1, PAIRS // (len(x) * len(y)))):
        x_weights, y_weights = (weights[:, edges].transpose(0, 1).double() for weights in (x, y))  # (n, R, degree)
        # by differences: with products, equal vectors would be 1e-8 apart
        sums[nodes] = torch.cdist(x_weights, y_weights, compute_mode="donot_use_mm_for_euclid_dist").sum((1, 2))
    return sums


def _group_by_degree(ptr: Tensor, max_nodes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield at most `max_nodes` nodes of one degree, (n,), and their incoming edges, (n, degree)."""
    degree = ptr.diff()
    for value in degree.unique().tolist():
        if value:
            for nodes in (degree == value).nonzero().flatten().split(max_nodes):
                yield nodes, ptr[nodes][:, None] + torch.arange(value)
