"""Worker processes: batches of a DataLoader, and chunks of parallel work over all cores; errors name graph and file."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch.utils.data import DataLoader, Subset
from torch_geometric.data import Batch, Data

from graphgps_kmip.common.forked_work import begin_worker, load_scipy
from graphgps_kmip.common.progress import terminal_bar
from graphgps_kmip.data.dataset import name_graph
from graphgps_kmip.data.dataset_info import check_alike
from graphgps_kmip.data.file_errors import graph_at, kind_and_text
from graphgps_kmip.errors import DataError, InputError, UserError

KILLED = re.compile(r"DataLoader worker .*(killed by signal|exited unexpectedly)")


class GraphBatches(torch.utils.data.Dataset):
    """Joins graphs into batches, in whichever process asks for them; ``files`` as of `GraphDataset`, for errors."""

    def __init__(self, graphs: Sequence[Data], files: Sequence[str] | None = None) -> None:
        self.graphs, self.files = graphs, files

    def __len__(self) -> int:
        return len(self.graphs)

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


def batches(loader: DataLoader) -> Iterator[Batch]:
    """Iterate over a loader; DataError where graphs cannot be read or joined, or a worker was killed."""
    try:
        for batch in loader:
            if isinstance(batch, UserError):
                raise batch
            yield batch
    except RuntimeError as error:
        if not KILLED.match(str(error)):
            raise
        raise DataError(
            f"num_workers: a process that loads data was killed ({kind_and_text(error)}): it may have needed more "
            "memory: set num_workers lower; 0 loads in the main process"
        ) from error


Result = TypeVar("Result")
_work: Callable[[range], object]


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_order(
    title: str, work: Callable[[range], Result], chunks: Sequence[range], num_workers: int
) -> Iterator[Result]:
    """Yield ``work(chunk)`` of each chunk, in the order of the chunks.

    Args:
        title: of the progress bar.
        work: a function; where processes cannot be forked, one that can be pickled, too.
        chunks: ranges of numbers; the bar counts these.
        num_workers: processes; a single one, or a single chunk, is worked on in this process with all its threads.
    """
    workers = min(num_workers, len(chunks))
    with terminal_bar(desc=title, total=sum(map(len, chunks))) as bar:
        results = map(work, chunks) if workers <= 1 else _map_over_processes(title, work, chunks, workers)
        for chunk, result in zip(chunks, results, strict=True):
            bar.update(len(chunk))
            yield result


def _map_over_processes(
    title: str, work: Callable[[range], Result], chunks: Sequence[range], workers: int
) -> Iterator[Result]:
    load_scipy()
    kind = "fork" if "fork" in multiprocessing.get_all_start_methods() else None  # forked, they need no copy of data
    with ProcessPoolExecutor(workers, multiprocessing.get_context(kind), _start_worker, (work,)) as pool:
        try:
            yield from pool.map(_call, chunks)
        except BrokenProcessPool as error:
            raise InputError(
                f"{title}: one of {workers} processes was killed; it may have needed more memory: give it fewer cores, "
                "as by `taskset -c 0 python main.py ...`, which takes fewer processes"
            ) from error


def _start_worker(work: Callable[[range], object]) -> None:
    global _work
    _work = work
    begin_worker()
    threadpool_limits(1)  # BLAS has threads of its own


def _call(chunk: range) -> object:
    return _work(chunk)


Job = tuple[int, int, np.ndarray, bool]  # epoch, number of the batch, nodes, filler


class NodeBatchLoader:
    """Loader of batches that are planned as lists of nodes of one graph: by `_plan` and `_make` of subclasses.

    Process r of W takes batches r, r + W, ...; where they run out, a first one again, with ``batch.filler = True``.
    """

    sharded = True  # yields this process's share only

    def __init__(self, seed: int, shuffle: bool, num_workers: int, rank: int, world_size: int) -> None:
        self.seed, self.shuffle, self.epoch = seed, shuffle, 0
        self.num_workers, self.rank, self.world_size = num_workers, rank, world_size
        self.generator = torch.Generator().manual_seed(seed)  # making an iterator draws a seed, not from the model's

    def set_epoch(self, epoch: int) -> None:
        """Choose what is drawn in this epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._jobs())

    def __iter__(self) -> Iterator[Data]:
        loader = DataLoader(
            self,
            batch_size=None,
            sampler=self._jobs(),
            num_workers=self.num_workers,
            pin_memory=torch.cuda.is_available(),
            generator=self.generator,
        )
        return batches(loader)

    def __getitem__(self, job: Job) -> Data:
        """Return the batch of a job, in whichever process."""
        *arguments, is_filler = job
        batch = self._make(*arguments)
        if is_filler:
            batch.filler = True
        return batch

    def _jobs(self) -> list[Job]:
        plan = self._plan()
        jobs = [(self.epoch, number, plan[number], False) for number in range(self.rank, len(plan), self.world_size)]
        missing = -(-len(plan) // self.world_size) - len(jobs)
        return jobs + [(self.epoch, number, plan[number], True) for number in range(missing)]

    def _plan(self) -> list[np.ndarray]:
        """Return the nodes of each batch of the epoch."""
        raise NotImplementedError

    def _make(self, epoch: int, number: int, nodes: np.ndarray) -> Data:
        """Return a batch; what is drawn must not depend on the process."""
        raise NotImplementedError
