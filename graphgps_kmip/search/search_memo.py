"""Memo of search results for gradient checkpointing: a layer that is recomputed does not search again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec

import torch
from torch import Tensor
from torch.compiler import is_compiling

Found = tuple[Tensor, Tensor]
Arguments = ParamSpec("Arguments")
_current: ContextVar[Memo | None] = ContextVar("search memo", default=None)


class Memo:
    """Results of the searches of a module, in order: recorded once, returned whenever the module is recomputed.

    Stores score, and index in int32 where that is enough: 8 bytes per head, query and slot.
    """

    def __init__(self) -> None:
        self.found: list[Found] = []
        self.rest: Iterator[Found] | None = None  # results to return; None: searches are recorded

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the results of all searches in this block."""
        yield from self._active(None)

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Return the recorded results, in the same order, instead of searching."""
        yield from self._active(iter(self.found))

    def _active(self, rest: Iterator[Found] | None) -> Iterator[None]:
        self.rest, token = rest, _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def answer(self, search: Callable[[], Found], num_rows: int) -> Found:
        """Return the result of a search among so many rows, or the recorded one."""
        if self.rest is not None:
            index, score = next(self.rest)
            return index.long(), score
        index, score = search()
        self.found.append((index.to(torch.int32 if num_rows < 2**31 else torch.int64), score))
        return index, score


def remembered(
    num_rows: Callable[Arguments, int],
) -> Callable[[Callable[Arguments, Found]], Callable[Arguments, Found]]:
    """Decorator of a search function whose results a `Memo` records and returns.

    Args:
        num_rows (callable): number of rows that the search with these arguments may name.
    """

    def decorate(search: Callable[Arguments, Found]) -> Callable[Arguments, Found]:
        @wraps(search)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Found:
            memo = None if is_compiling() else _current.get()
            if memo is None:
                return search(*args, **kwargs)
            return memo.answer(lambda: search(*args, **kwargs), num_rows(*args, **kwargs))

        return call

    return decorate
