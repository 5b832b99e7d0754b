"""Parallel work in forked processes: one process for each item, results as they come; a killed process is an error."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import scipy
import torch

from graphgps_kmip.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")


def as_done(
    title: str, work: Callable[[Item], Result], items: Iterable[Item], num_workers: int
) -> Iterator[tuple[Item, Result]]:
    """Yield (item, ``work(item)``) in the order in which results come; `title` is that of the work, for errors.

    Each item has a forked process of one thread; with one worker all are done in this process. Results must be
    picklable, what ``work`` reads need not be. An interrupted or closed iteration ends all processes at once.

    Raises:
        InputError: a process was killed, or this system cannot fork.
        Exception: what ``work`` raised, or a RuntimeError that names it.
    """
    if num_workers <= 1:
        yield from ((item, work(item)) for item in items)
        return
    if "fork" not in multiprocessing.get_all_start_methods():
        raise InputError(f"{title}: this system cannot fork processes: work in one, num_threads 1")
    load_scipy()
    waiting, running = iter(items), {}
    try:
        while True:
            while len(running) < num_workers and (item := next(waiting, waiting)) is not waiting:
                receiver, process = _start(work, item)
                running[receiver] = item, process
            if not running:
                return
            for receiver in wait(list(running)):
                item, process = running.pop(receiver)
                yield item, _receive(title, receiver, process, item)
    finally:
        for _, process in running.values():
            process.terminate()
        for receiver, (_, process) in running.items():
            process.join()
            receiver.close()


def load_scipy() -> None:
    """Load what encodings use of scipy, which else each forked process loads, after it has limited threads of BLAS."""
    scipy.linalg.lapack, scipy.sparse.csgraph, scipy.sparse.linalg, scipy.spatial  # noqa: B018


def _start(work: Callable[[Any], Any], item: Any) -> tuple[Connection, multiprocessing.Process]:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(work, item, sender))
    process.start()
    sender.close()  # the child has the only other end: when it dies, the receiver sees the end of the pipe
    return receiver, process


def _run(work: Callable[[Any], Any], item: Any, sender: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    begin_worker()
    try:
        outcome: tuple[bool, Any] = True, work(item)
    except Exception as error:
        try:
            outcome = False, pickle.loads(pickle.dumps(error))
        except Exception:  # whatever its own __init__ raises
            outcome = False, RuntimeError(f"{type(error).__name__}: {' '.join(str(error).split())}")
    sender.send(outcome)
    sender.close()


def begin_worker() -> None:
    """Prepare a forked process: one thread, Ctrl-C is its parent's, and it ends with that, as do its locks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)  # each has a core; and threads of a forked process may wait for ever
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def _receive(title: str, receiver: Connection, process: multiprocessing.Process, item: Any) -> Any:
    try:
        done, result = receiver.recv()
    except EOFError:
        process.join()
        raise InputError(
            f"{title}: the process of {item} was killed (exit code {process.exitcode}); it may have needed more "
            "memory: take fewer processes, num_threads"
        ) from None
    finally:
        receiver.close()
    process.join()
    if not done:
        raise result
    return result
