"""Loaders of mini-batches of graphs, which depend on (seed, epoch) only: not on processes, nor on what ran before.

`make_loaders` returns those of training, validation and test. A batch holds a number of graphs, or as many as fit into
a number of nodes (`with_node_budget`): steps of even cost where graphs differ much in size.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch_geometric.data import Batch, Data

from graphgps_kmip.data.dataset import SPLITS, GraphDataset
from graphgps_kmip.data.node_loader import FULL_BATCH, NodeLoader, Sampling
from graphgps_kmip.data.worker_processes import GraphBatches, as_is, batches
from graphgps_kmip.errors import InputError


class ShardedBatches:
    """Batch sampler: the rows that one process takes of each global batch.

    The global batches are the same for any number W of processes; process r takes rows r, r + W, ... of each, which
    may be none in the last one. No sample is lost or comes twice.

    Args:
        num_samples: size of the data set.
        batch_size: graphs in a global batch.
        seed: of the order; None keeps the order of the data set.
        rank: number r of this process.
        world_size: number W of processes.
    """

    def __init__(self, num_samples: int, batch_size: int, seed: int | None, rank: int = 0, world_size: int = 1) -> None:
        if batch_size < 1:
            raise InputError(f"train.batch_size must be at least 1, got {batch_size}")
        if not 0 <= rank < world_size:
            raise InputError(f"rank must be in 0..{world_size - 1} for {world_size} processes, got {rank}")
        self.num_samples, self.batch_size, self.seed = num_samples, batch_size, seed
        self.rank, self.world_size, self.epoch = rank, world_size, 0

    def __len__(self) -> int:
        return -(-self.num_samples // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = np.arange(self.num_samples)
        if self.seed is not None:
            order = np.random.default_rng((self.seed, self.epoch)).permutation(order)
        for start in range(0, self.num_samples, self.batch_size):
            yield order[start : start + self.batch_size][self.rank :: self.world_size].tolist()


class GraphLoader:
    """Batches of graphs for one process; ``set_epoch`` before each epoch chooses the order.

    A process whose share of a batch is empty gets one graph marked ``batch.filler = True``, which must not count: all
    processes make equally many steps.

    Args:
        graphs: the data set.
        batch_size: graphs in a global batch, over all processes.
        seed: of order and workers.
        shuffle: a new order each epoch; False keeps the order of the data set.
        num_workers: processes that make batches in advance.
        rank: number of this process.
        world_size: number of processes.
        files: where each graph of the whole data set was read from, for errors.
    """

    sharded = True  # yields this process's share only

    def __init__(
        self,
        graphs: Sequence[Data],
        batch_size: int,
        seed: int = 0,
        shuffle: bool = False,
        num_workers: int = 0,
        rank: int = 0,
        world_size: int = 1,
        files: Sequence[str] | None = None,
    ) -> None:
        self.dataset, self.seed, self.num_workers, self.files = graphs, seed, num_workers, files
        self.batches = ShardedBatches(len(graphs), batch_size, seed if shuffle else None, rank, world_size)
        # Its own generator: making an iterator draws a seed for the workers, which must not move the model's dropout.
        self.generator = torch.Generator().manual_seed(seed)
        self.use(self.batches)

    def use(self, sampler: Any) -> None:
        """Take the batches of another batch sampler from now on."""
        self.batches = sampler
        self.loader = DataLoader(
            GraphBatches(self.dataset, self.files),
            batch_sampler=sampler,
            collate_fn=as_is,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            generator=self.generator,
        )

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch."""
        self.batches.epoch = epoch

    @property
    def single_graph(self) -> Sequence[Data] | None:
        """The data set of one graph, which loaders of several splits may share; None: it has more graphs."""
        return self.dataset if len(self.dataset) == 1 else None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        return batches(self.loader)


def make_loaders(
    dataset: GraphDataset,
    level: str,
    batch_size: int,
    seed: int,
    num_workers: int = 0,
    shuffle: bool = True,
    rank: int = 0,
    world_size: int = 1,
    sampling: Sampling | None = None,
) -> list[GraphLoader | NodeLoader]:
    """Return the loaders of training, validation and test.

    At level "node" each of the three yields the one graph, whose nodes are divided by masks, as its only batch, or the
    subgraphs that ``sampling`` says; where the data set holds a graph for each node (`around_nodes`), batches of these.

    Args:
        dataset: graphs and splits.
        level: "graph", "inductive_node" or "node".
        batch_size: graphs in a global batch, over all processes.
        seed: of the order of training.
        num_workers: processes that make batches in advance, for each loader.
        shuffle: a new order of the training graphs each epoch.
        rank: number of this process.
        world_size: number of processes.
        sampling: batches of the nodes of one graph; None: full batches.

    Raises:
        ValueError: nodes are to be sampled, but there are many graphs.
    """
    sampling = sampling or Sampling()
    if level == "node" and dataset.splits is None:
        return [_node_loader(dataset, split, sampling, seed, num_workers, rank, world_size) for split in SPLITS]
    for key, name in (("train.sampler", sampling.sampler), ("val.sampler", sampling.val_sampler)):
        if name != FULL_BATCH:
            raise InputError(f"{key}: {name} divides the nodes of one graph, and here are many: set {FULL_BATCH}")
    train, *evaluation = (dataset.part(split) for split in SPLITS)
    shared = {"num_workers": num_workers, "rank": rank, "world_size": world_size, "files": dataset.files}
    return [
        GraphLoader(train, batch_size, seed, shuffle, **shared),
        *(GraphLoader(part, batch_size, seed, **shared) for part in evaluation),
    ]


def _node_loader(
    dataset: GraphDataset, split: str, sampling: Sampling, seed: int, num_workers: int, rank: int, world_size: int
) -> GraphLoader | NodeLoader:
    training = split == "train"
    name = sampling.sampler if training else sampling.val_sampler
    if name == FULL_BATCH:
        return GraphLoader(dataset.graphs, 1, seed, rank=rank, world_size=world_size)
    return NodeLoader(dataset.graphs[0], split, name, sampling, seed, training, num_workers, rank, world_size)


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
    """Return a new loader of the same graphs whose global batches follow a budget of nodes, not a number of graphs.

    Raises:
        ValueError: the budget is below 1.
    """
    new, plain = copy.copy(loader), loader.batches
    num_nodes = [graph.num_nodes for graph in loader.dataset]
    new.use(NodeBudget(num_nodes, max_nodes, plain.seed, plain.rank, plain.world_size))
    return new
