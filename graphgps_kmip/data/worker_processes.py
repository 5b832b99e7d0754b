"""DataLoader worker processes: batches of graphs, and their errors in one line with graph and file."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset
from torch_geometric.data import Batch, Data

from graphgps_kmip.data.dataset import graph_words
from graphgps_kmip.data.file_errors import FILE_ERRORS, graph_at, kind_and_text
from graphgps_kmip.data.graph_checks import check_alike
from graphgps_kmip.errors import DataError, UserError

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
