"""Loader of mini-batches of the nodes of one graph, which depend on (seed, epoch) only."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch_geometric.data import Batch, Data

from graphgps_kmip.data.node_batches import SAMPLERS, Sampling, Source
from graphgps_kmip.data.subgraph import part_of
from graphgps_kmip.data.worker_processes import batches

Job = tuple[int, int, np.ndarray, bool]  # epoch, number of the batch, nodes, filler


class NodeLoader:
    """Subgraphs of one graph, in which ``<split>_mask`` holds the nodes that count in this batch.

    Process r of W takes batches r, r + W, ...; where they run out, one marked ``batch.filler = True``, which must not
    count. A batch without a node of the split is left out.

    Args:
        graph: one graph with ``<split>_mask`` (N,).
        split: "train", "val" or "test".
        name: key of `SAMPLERS`.
        sampling: sizes.
        seed: of what is drawn.
        shuffle: a new plan for each epoch; False: the same always.
        num_workers: processes that make batches in advance.
        rank: number r of this process.
        world_size: number W of processes.
    """

    sharded = True  # yields this process's share only

    def __init__(
        self,
        graph: Data,
        split: str,
        name: str,
        sampling: Sampling,
        seed: int = 0,
        shuffle: bool = False,
        num_workers: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.graph, self.mask, self.seed, self.shuffle = graph, f"{split}_mask", seed, shuffle
        self.sampler, self.source = SAMPLERS[name], Source(graph, graph[self.mask], sampling)
        self.rank, self.world_size, self.epoch = rank, world_size, 0
        self.generator = torch.Generator().manual_seed(seed)  # making an iterator draws a seed, not from the model's
        self.num_workers = num_workers

    def set_epoch(self, epoch: int) -> None:
        """Choose what is drawn in this epoch."""
        self.epoch = epoch if self.shuffle else 0

    def __len__(self) -> int:
        return len(self._jobs())

    def __iter__(self) -> Iterator[Batch]:
        loader = DataLoader(
            _Parts(self),
            batch_size=None,
            sampler=self._jobs(),
            num_workers=self.num_workers,
            pin_memory=torch.cuda.is_available(),
            generator=self.generator,
        )
        return batches(loader)

    def _jobs(self) -> list[Job]:
        rng = np.random.default_rng((self.seed, self.epoch)) if self.shuffle else None
        wanted = self.graph[self.mask].numpy()
        plan = [nodes for nodes in self.sampler.plan(self.source, rng) if wanted[nodes].any()]
        own = [(self.epoch, i, plan[i], False) for i in range(self.rank, len(plan), self.world_size)]
        missing = -(-len(plan) // self.world_size) - len(own)
        return own + [(self.epoch, i, plan[i], True) for i in range(missing)]


class _Parts(torch.utils.data.Dataset):
    """Makes a batch of a job; what is drawn depends on its number, not on the process."""

    def __init__(self, loader: NodeLoader) -> None:
        self.loader = loader

    def __getitem__(self, job: Job) -> Batch:
        epoch, number, nodes, filler = job
        loader = self.loader
        found, edges = loader.sampler.grow(loader.source, nodes, np.random.default_rng((loader.seed, epoch, number)))
        part = part_of(loader.graph, found, edges)
        part[loader.mask] = part[loader.mask].clone()
        part[loader.mask][len(nodes) :] = False
        batch = Batch.from_data_list([part])
        if filler:
            batch.filler = True
        return batch
