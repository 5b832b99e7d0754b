"""Linear encoders of relative random walk probabilities (RRWP) for nodes and pairs (Ma et al. 2023, GRIT)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from graphgps_kmip.ops.host_copies import host_copy
from graphgps_kmip.ops.node_pairs import first_nodes


class RRWPLinear(nn.Module):
    r"""Adds a linear map of a node's own RRWP to its features, and makes pair features by another one.

    .. math:: x_i' = x_i + W_1 P_{ii}, \qquad e_{ij} = W_2 P_{ij}

    without biases, Xavier uniform at the start (GRIT's ``rrwp_linear`` encoders). Edge features are left to the
    attention, as they are encoded later: `GRITAttention` adds them to those of their pairs.

    Args:
        num_channels (int): width C of RRWP.
        dim (int): width of nodes and pairs.
        prepare (callable, optional): batch -> batch with ``rrwp``. (default: None, it is there)

    Shapes: batch.x (N, dim), batch.rrwp (P, C) of all pairs, graph by graph, query by query, or of those of
        batch.rrwp_index (2, P), where there is one -> batch.x (N, dim), batch.pair_attr (P, dim), batch.pair_index None
        or (2, P).
    """

    def __init__(
        self,
        num_channels: int,
        dim: int,
        prepare: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__()
        self.prepare = prepare
        self.node, self.pair = (nn.Linear(num_channels, dim, bias=False) for _ in range(2))
        for linear in (self.node, self.pair):
            nn.init.xavier_uniform_(linear.weight)

    def forward(self, batch: Any) -> Any:
        """Return the batch with new x, and with pair_attr."""
        batch = batch if self.prepare is None else self.prepare(batch)
        values = batch.rrwp.to(self.pair.weight.dtype)
        batch.x = batch.x + self.node(diagonal(values, first_nodes(batch), batch.get("rrwp_index")))
        batch.pair_attr = self.pair(values)
        if "rrwp_index" in batch:
            batch.pair_index = batch.rrwp_index
        return batch


def diagonal(values: Tensor, ptr: Tensor, index: Tensor | None = None) -> Tensor:
    """Return the rows of the pairs (i, i): (P, C) -> (N, C).

    Args:
        values (Tensor): Values of all pairs, graph by graph, query by query, or of a list.
        ptr (Tensor): First node of each graph, and the number of nodes at the end.
        index (Tensor, optional): The pairs of that list, (2, P); a node that is not in it has zeros. (default: None)
    """
    if index is not None:
        own = index[0] == index[1]
        return values.new_zeros(int(host_copy(ptr)[-1]), values.size(1)).index_copy(0, index[0, own], values[own])
    sizes, number = ptr.diff(), int(host_copy(ptr)[-1])
    first = sizes.square().cumsum(0) - sizes.square()
    start, pair, size = (part.repeat_interleave(sizes, output_size=number) for part in (ptr[:-1], first, sizes))
    node = torch.arange(number, device=ptr.device) - start
    return values[pair + node * (size + 1)]
