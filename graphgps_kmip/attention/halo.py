"""One graph whose nodes are divided over processes: what a process must be told of the others' nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphgps_kmip.common.collectives import exchange, total


@dataclass(frozen=True, eq=False)
class Halo:
    """The nodes of other processes at which edges of this one start, and its own that others need.

    Every process must make every call: all are collective, backward too.

    Args:
        send_rows: own rows that others need, in order of the receiving rank.
        send: how many go to each rank.
        receive: how many come from each rank.

    Shapes: send_rows (S,).
    """

    send_rows: Tensor
    send: tuple[int, ...]
    receive: tuple[int, ...]

    @classmethod
    def from_data(cls, data: Any) -> Halo | None:
        """Return the halo that a loader wrote into a batch (`shard_of`); None: the batch holds whole graphs."""
        if "halo_rows" not in data:
            return None
        return cls(data.halo_rows, tuple(data.halo_send.tolist()), tuple(data.halo_receive.tolist()))

    def extend(self, x: Tensor) -> Tensor:
        """Append the rows of the nodes that are elsewhere; gradients go back there: (n, C) -> (n + h, C)."""
        return torch.cat([x, exchange(x[self.send_rows], self.send, self.receive)])

    def total(self, value: Tensor) -> Tensor:
        """Return the sum over all processes, on each of them; gradients flow."""
        return total(value)
