"""Loaders of mini-batches of graphs, by number or by a budget of nodes (`with_node_budget`).

Batches depend on (seed, epoch) only: not on processes, nor on what ran before.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import DataLoader, Subset
from torch_geometric.data import Batch, Data

from graphgps_kmip.data.dataset import SPLITS, GraphDataset, name_graph
from graphgps_kmip.data.dataset_info import check_alike
from graphgps_kmip.data.file_errors import graph_at
from graphgps_kmip.data.node_loader import FULL_BATCH, NodeLoader, Sampling, batches
from graphgps_kmip.errors import InputError, UserError


class GlobalBatches:
    """Batch sampler: the rows that one process takes of each global batch of graphs.

    Process r of any number W takes rows r, r + W, ... of each, perhaps none.

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
        return (batch[self.rank :: self.world_size] for batch in self._plan(self._order()))

    def _order(self) -> np.ndarray:
        order = np.arange(self.num_samples)
        if self.seed is not None:
            order = np.random.default_rng((self.seed, self.epoch)).permutation(order)
        return order

    def _plan(self, order: np.ndarray) -> Iterator[list[int]]:
        return (order[at : at + self.batch_size].tolist() for at in range(0, self.num_samples, self.batch_size))


class GraphBatches(torch.utils.data.Dataset):
    """Joins graphs into batches, in whichever process asks for them; ``files`` as of `GraphDataset`, for errors."""

    def __init__(self, graphs: Sequence[Data], files: Sequence[str] | None = None) -> None:
        self.graphs, self.files = graphs, files

    def __getitem__(self, numbers: list[int]) -> Batch | UserError:
        """Return a batch of these graphs; of none of them, the first graph marked ``batch.filler = True``."""
        try:
            batch = self._join(numbers or [0])
        except UserError as error:  # raised in a worker, it would reach the user as a traceback inside a traceback
            return error
        if not numbers:
            batch.filler = True
        return batch

    def _join(self, numbers: list[int]) -> Batch:
        places = [self._place(number) for number in numbers]
        graphs = [graph_at(self.graphs, number, place) for number, place in zip(numbers, places, strict=True)]
        try:
            return Batch.from_data_list(graphs)
        except (RuntimeError, KeyError, TypeError, AttributeError, ValueError):
            check_alike(zip(places, graphs, strict=True))
            raise

    def _place(self, number: int) -> str:
        whole = self.graphs.indices[number] if isinstance(self.graphs, Subset) else number
        return name_graph(int(whole), self.files)


class GraphLoader:
    """Batches of graphs for one process; ``set_epoch`` before each epoch chooses the order.

    A process whose share of a batch is empty gets one graph marked ``batch.filler = True``, which must not count.

    Args:
        graphs: the data set.
        batch_size: graphs in a global batch, over all processes.
        seed: of order and workers.
        shuffle: a new order each epoch; False keeps the order of the data set.
        num_workers: processes that make batches in advance.
        rank: number of this process.
        world_size: number of processes.
        files: as of `GraphDataset`, for errors.
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
        # Its own generator: making an iterator draws a seed for the workers, which must not move the model's dropout.
        self.generator = torch.Generator().manual_seed(seed)
        self.use(GlobalBatches(len(graphs), batch_size, seed if shuffle else None, rank, world_size))

    def use(self, sampler: GlobalBatches) -> None:
        """Take the batches of another batch sampler from now on."""
        self.batches = sampler
        self.loader = DataLoader(
            GraphBatches(self.dataset, self.files),
            batch_size=None,  # the sampler's items are lists of graphs
            sampler=sampler,
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

    At level "node" each yields the one graph as its only batch, or the subgraphs that ``sampling`` says; where the data
    set holds a graph for each node (`around_nodes`), batches of these.

    Args:
        dataset: graphs and splits.
        level: "graph", "inductive_node", "node" or "link".
        batch_size: graphs in a global batch, over all processes.
        seed: of the order of training.
        num_workers: processes that make batches in advance, for each loader.
        shuffle: a new order of the training graphs each epoch.
        rank: number of this process.
        world_size: number of processes.
        sampling: batches of the nodes of one graph; None: full batches.
    """
    sampling = sampling or Sampling()
    shared = {"num_workers": num_workers, "rank": rank, "world_size": world_size}
    names = {"train": sampling.sampler, "val": sampling.val_sampler, "test": sampling.val_sampler}
    if level == "node" and dataset.splits is None:
        return [
            GraphLoader(dataset.graphs, 1, seed, rank=rank, world_size=world_size)
            if name == FULL_BATCH
            else NodeLoader(dataset.graphs[0], split, name, sampling, seed, split == "train", **shared)
            for split, name in names.items()
        ]
    for split, name in names.items():
        if name != FULL_BATCH:
            raise InputError(
                f"{split}.sampler: {name} divides the nodes of one graph, and here are many: set {FULL_BATCH}"
            )
    return [
        GraphLoader(dataset.part(split), batch_size, seed, shuffle and split == "train", files=dataset.files, **shared)
        for split in SPLITS
    ]


class NodeBudget(GlobalBatches):
    """Batch sampler: graphs in the order of the epoch, a new batch wherever the next graph would not fit.

    A graph of more nodes than the budget is a batch of its own. ``num_nodes`` are those of each graph, ``max_nodes``
    those of a global batch; other arguments as of `GlobalBatches`.
    """

    def __init__(
        self, num_nodes: Sequence[int], max_nodes: int, seed: int | None, rank: int = 0, world_size: int = 1
    ) -> None:
        super().__init__(len(num_nodes), 1, seed, rank, world_size)
        if max_nodes < 1:
            raise InputError(
                f"train.max_nodes must be at least 1, or 0 for batches of train.batch_size, got {max_nodes}"
            )
        self.num_nodes, self.max_nodes = num_nodes, max_nodes

    def __len__(self) -> int:
        return len(self._plan(self._order()))

    def _plan(self, order: np.ndarray) -> list[list[int]]:
        batches: list[list[int]] = []
        left = 0
        for graph in order.tolist():
            left -= self.num_nodes[graph]
            if left < 0 or not batches:
                batches.append([])
                left = self.max_nodes - self.num_nodes[graph]
            batches[-1].append(graph)
        return batches


def with_node_budget(loader: GraphLoader, max_nodes: int) -> GraphLoader:
    """Return a new loader of the same graphs whose global batches follow a budget of nodes, see `NodeBudget`."""
    new, plain = copy.copy(loader), loader.batches
    num_nodes = [graph.num_nodes for graph in loader.dataset]
    new.use(NodeBudget(num_nodes, max_nodes, plain.seed, plain.rank, plain.world_size))
    return new
