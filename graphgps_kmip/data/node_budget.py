"""Batches of as many graphs as fit into a number of nodes: steps of even cost where graphs differ much in size."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import numpy as np

from graphgps_kmip.data.loaders import GraphLoader
from graphgps_kmip.errors import InputError


class NodeBudget:
    """Batch sampler: graphs in the order of the epoch, a new batch wherever the next graph would not fit.

    Every graph comes once; one of more nodes than the budget is a batch of its own. The global batches are the same for
    any number W of processes; process r takes rows r, r + W, ... of each, which may be none.

    Args:
        num_nodes: nodes of each graph.
        max_nodes: nodes of a global batch.
        seed: of the order; None keeps the order of the data set.
        rank: number r of this process.
        world_size: number W of processes.

    Raises:
        ValueError: the budget is below 1.
    """

    def __init__(
        self, num_nodes: Sequence[int], max_nodes: int, seed: int | None, rank: int = 0, world_size: int = 1
    ) -> None:
        if max_nodes < 1:
            raise InputError(
                f"train.max_nodes must be at least 1, or 0 for batches of train.batch_size, got {max_nodes}"
            )
        self.num_nodes, self.max_nodes, self.seed = np.asarray(num_nodes), max_nodes, seed
        self.rank, self.world_size, self.epoch = rank, world_size, 0

    def __len__(self) -> int:
        return len(self._plan())

    def __iter__(self) -> Iterator[list[int]]:
        return (batch[self.rank :: self.world_size] for batch in self._plan())

    def _plan(self) -> list[list[int]]:
        order = np.arange(len(self.num_nodes))
        if self.seed is not None:
            order = np.random.default_rng((self.seed, self.epoch)).permutation(order)
        batches: list[list[int]] = []
        left = 0
        for graph in order.tolist():
            left -= int(self.num_nodes[graph])
            if left < 0 or not batches:
                batches.append([])
                left = self.max_nodes - int(self.num_nodes[graph])
            batches[-1].append(graph)
        return batches


def with_node_budget(loader: GraphLoader, max_nodes: int) -> GraphLoader:
    """Return a loader of the same graphs whose batches follow a budget of nodes, not a number of graphs.

    Args:
        loader: stays as it is.
        max_nodes: nodes of a global batch.

    Raises:
        ValueError: the budget is below 1.
    """
    new, plain = copy.copy(loader), loader.batches
    num_nodes = [graph.num_nodes for graph in loader.dataset]
    new.use(NodeBudget(num_nodes, max_nodes, plain.seed, plain.rank, plain.world_size))
    return new
