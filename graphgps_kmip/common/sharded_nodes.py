"""Node features of a shard of a graph: of its sources, which are the own nodes and then the halo, and its targets."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class ShardedNodes(tuple[Tensor, Tensor]):
    """The pair (sources, targets) of a shard; the targets are the first of the sources, so that loops are recognised.

    Args:
        x (Tensor): features of the own nodes.
        extend (Callable): appends the rows of the halo, which other processes have, ``(n, C) -> (n + h, C)``;
            collective, in the backward pass too.

    Shapes: x (n, C); the pair (n + h, C), (n, C).
    """

    extend: Callable[[Tensor], Tensor]

    def __new__(cls, x: Tensor, extend: Callable[[Tensor], Tensor]) -> ShardedNodes:
        """Make the pair."""
        pair = super().__new__(cls, (extend(x), x))
        pair.extend = extend
        return pair
