"""Memo of search results for gradient checkpointing: a layer that is recomputed does not search again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.compiler import is_compiling

Result = tuple[Tensor, Tensor]
_current: ContextVar[Memo | None] = ContextVar("search memo", default=None)


class Memo:
    """Results of the searches of a module, in order: recorded once, returned whenever the module is recomputed."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.rest: Iterator[Result] | None = None  # results to return; None: searches are recorded

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the results of all searches in this block."""
        yield from self._activate(None)

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Return the recorded results, in the same order, instead of searching."""
        yield from self._activate(iter(self.results))

    def _activate(self, rest: Iterator[Result] | None) -> Iterator[None]:
        self.rest, token = rest, _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


def search_or_recall(search: Callable[[], Result], num_rows: int) -> Result:
    """Return the result of a search among ``num_rows`` rows, or the one that the current `Memo` has recorded."""
    memo = None if is_compiling() else _current.get()
    if memo is None:
        return search()
    if memo.rest is not None:
        index, score = next(memo.rest)
        return index.long(), score
    index, score = search()
    memo.results.append((index.to(torch.int32 if num_rows < 2**31 else torch.int64), score))
    return index, score
