"""Parallel work on chunks over all cores: results come in the order of the chunks, with a progress bar and its ETA."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import torch
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from graphgps_kmip.data.file_errors import kind_and_text
from graphgps_kmip.errors import InputError

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
    try:
        return _work(chunk)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # whatever its own __init__ raises; the pool would seem killed
            raise RuntimeError(kind_and_text(error)) from None
        raise
