"""Batches of one graph's nodes by a plan: the share of each process, and the batches made of it in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch_geometric.data import Data

from graphgps_kmip.data.worker_processes import batches

Job = tuple[int, int, np.ndarray, bool]  # epoch, number of the batch, nodes, filler
Make = Callable[[int, int, np.ndarray], Data]  # (epoch, number of the batch, nodes) -> batch


def own_jobs(plan: Sequence[np.ndarray], epoch: int, rank: int = 0, world_size: int = 1) -> list[Job]:
    """Return the batches that process ``rank`` of ``world_size`` makes: every so many-th one of the plan.

    All processes have equally many: where the batches run out, they get the first ones again, as fillers.

    Args:
        plan: the nodes of each batch of an epoch.
        epoch: its number.
        rank: number of this process.
        world_size: number of processes.
    """
    own = [(epoch, number, plan[number], False) for number in range(rank, len(plan), world_size)]
    missing = -(-len(plan) // world_size) - len(own)
    return own + [(epoch, number, plan[number], True) for number in range(missing)]


def made_of(jobs: list[Job], make: Make, num_workers: int, generator: torch.Generator) -> Iterator[Data]:
    """Return an iterator over the batches of the jobs; fillers are marked ``batch.filler = True``.

    Args:
        jobs: of `own_jobs`.
        make: makes a batch; what it draws must not depend on the process.
        num_workers: processes that make batches in advance.
        generator: what an iterator draws a seed from when it is made, so that it does not draw from the model's.

    Raises (by the iterator):
        DataError: a process was killed.
    """
    loader = DataLoader(
        _Jobs(make),
        batch_size=None,
        sampler=jobs,
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
        generator=generator,
    )
    return batches(loader)


class _Jobs(torch.utils.data.Dataset):
    """Makes the batch of a job, in whichever process asks for it."""

    def __init__(self, make: Make) -> None:
        self.make = make

    def __getitem__(self, job: Job) -> Data:
        epoch, number, nodes, filler = job
        batch = self.make(epoch, number, nodes)
        if filler:
            batch.filler = True
        return batch
