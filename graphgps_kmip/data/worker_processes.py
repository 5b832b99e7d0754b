"""Worker processes: batches of a DataLoader, and chunks of parallel work over all cores.

What fails in a worker is one line that names graph and file.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch.utils.data import DataLoader, Subset
from torch_geometric.data import Batch, Data
from tqdm import tqdm

from graphgps_kmip.common.forked_work import load_scipy
from graphgps_kmip.data.dataset import graph_words
from graphgps_kmip.data.dataset_info import check_alike
from graphgps_kmip.data.file_errors import FILE_ERRORS, graph_at, kind_and_text
from graphgps_kmip.errors import DataError, InputError, UserError

KILLED = re.compile(r"DataLoader worker .*(?:killed by signal: (?P<signal>[^.]*)|exited unexpectedly)")


class Failure:
    """An error in place of a batch: raised in a worker, it would reach the user as a traceback inside a traceback."""

    def __init__(self, error: UserError) -> None:
        self.error = error


class GraphBatches(torch.utils.data.Dataset):
    """Joins graphs into batches, in whichever process asks for them.

    Args:
        graphs: the data set, or a part of it.
        files: where each graph of the whole data set was read from, for errors; None: not known.
    """

    def __init__(self, graphs: Sequence[Data], files: Sequence[str] | None = None) -> None:
        self.graphs, self.files = graphs, files

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, number: int) -> Batch | Failure:
        """Return one graph as a batch."""
        return self.__getitems__([number])

    def __getitems__(self, numbers: list[int]) -> Batch | Failure:
        """Return a batch of these graphs; of none of them, the first graph marked ``batch.filler = True``."""
        try:
            batch = self._joined(numbers or [0])
        except UserError as error:
            return Failure(error)
        if not numbers:
            batch.filler = True
        return batch

    def _joined(self, numbers: list[int]) -> Batch:
        graphs = self._read(numbers)
        try:
            return Batch.from_data_list(graphs)
        except (RuntimeError, KeyError, TypeError, AttributeError, ValueError):
            check_alike(zip(map(self._place, numbers), graphs, strict=True))
            raise

    def _read(self, numbers: list[int]) -> list[Data]:
        together = getattr(self.graphs, "__getitems__", None)
        if callable(together):
            try:
                return list(together(numbers))
            except (UserError, *FILE_ERRORS):
                pass  # one after the other shows which
        return [graph_at(self.graphs, number, self._place(number)) for number in numbers]

    def _place(self, number: int) -> str:
        whole = self.graphs.indices[number] if isinstance(self.graphs, Subset) else number
        return graph_words(int(whole), self.files)


def as_is(batch: Any) -> Any:
    """Return a batch that was joined already: the ``collate_fn`` of `GraphBatches`."""
    return batch


def batches(loader: DataLoader) -> Iterator[Batch]:
    """Return an iterator over a loader's batches, whose errors are those of the user, in one line.

    Args:
        loader: of `GraphBatches`, or of something else that gives `Failure` in place of a batch.

    Raises (by the iterator):
        DataError: a graph cannot be read, graphs cannot be joined, or a process was killed.
    """
    iterator = iter(loader)
    if loader.num_workers:
        _watch_killed_workers()
    return _checked(iterator)


def _checked(iterator: Iterator[Any]) -> Iterator[Batch]:
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except RuntimeError as error:
            if KILLED.match(str(error)):
                raise _killed(error) from error
            raise
        if isinstance(batch, Failure):
            raise batch.error
        yield batch


def _watch_killed_workers() -> None:
    """Raise DataError where torch's handler of ended processes raises RuntimeError, in the midst of a training step."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        return
    before = signal.getsignal(signal.SIGCHLD)
    if not callable(before) or getattr(before, "names_killed_workers", False):
        return

    def handler(number: int, frame: Any) -> None:
        try:
            before(number, frame)
        except RuntimeError as error:
            if KILLED.match(str(error)):
                raise _killed(error) from error
            raise

    handler.names_killed_workers = True
    signal.signal(signal.SIGCHLD, handler)


def _killed(error: RuntimeError) -> DataError:
    found = KILLED.match(str(error))["signal"]
    reason = f"by signal {found}" if found else kind_and_text(error)
    return DataError(
        f"num_workers: a process that loads data was killed ({reason}): it may have needed more memory: set "
        "num_workers lower; 0 loads in the main process"
    )


MOMENT = 2  # seconds before the bar appears
AHEAD = 4  # chunks a process that are given out before the first result is taken: bounds what waits in memory

Result = TypeVar("Result")
_work: Callable[[range], object]


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    title: str, work: Callable[[range], Result], chunks: Sequence[range], num_workers: int
) -> Iterator[Result]:
    """Yield ``work(chunk)`` of each chunk, in the order of the chunks.

    Args:
        title: of the progress bar.
        work: a function; where processes cannot be forked, one that can be pickled, too.
        chunks: ranges of numbers; the bar counts these.
        num_workers: processes; a single one, or a single chunk, is worked on in this process with all its threads.

    Raises:
        ValueError: a process was killed.
    """
    workers = min(num_workers, len(chunks))
    with tqdm(desc=title, total=sum(map(len, chunks)), delay=MOMENT) as bar:
        results = map(work, chunks) if workers <= 1 else _over_processes(title, work, chunks, workers)
        for chunk, result in zip(chunks, results, strict=True):
            bar.update(len(chunk))
            yield result


def _over_processes(
    title: str, work: Callable[[range], Result], chunks: Sequence[range], workers: int
) -> Iterator[Result]:
    load_scipy()
    kind = "fork" if "fork" in multiprocessing.get_all_start_methods() else None  # forked, they need no copy of data
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context(kind), _enter, (work,))
    waiting: deque[tuple[range, Future]] = deque()
    try:
        for chunk in chunks:
            waiting.append((chunk, pool.submit(_call, chunk)))
            if len(waiting) > AHEAD * workers:
                yield _result(waiting)
        while waiting:
            yield _result(waiting)
    except BrokenProcessPool as error:
        under_way = [chunk for chunk, future in waiting if not future.done() or future.exception()][:workers]
        numbers = f" at graphs {under_way[0][0]:,} to {under_way[-1][-1]:,}" if under_way else ""
        raise InputError(
            f"{title}: one of {workers} processes was killed{numbers}; it may have needed more memory: give it fewer "
            "cores, as by `taskset -c 0 python main.py ...`, which takes fewer processes"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _result(waiting: deque[tuple[range, Future]]) -> object:
    """Return the first result, which stays among those that are waited for until it is there."""
    result = waiting[0][1].result()
    waiting.popleft()
    return result


def _enter(work: Callable[[range], object]) -> None:
    global _work
    _work = work
    torch.set_num_threads(1)  # each has a core; and threads of a forked process may wait for ever
    threadpool_limits(1)  # BLAS has threads of its own
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle: it ends its processes
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End with a killed parent: who lived on would hold its memory, and the lock of the file it was writing."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _call(chunk: range) -> object:
    return _work(chunk)


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
