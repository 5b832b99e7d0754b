"""What searches found, for when a layer is computed a second time: they carry no gradient, and cost the most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec

import torch
from torch import Tensor

Found = tuple[Tensor, Tensor]
Arguments = ParamSpec("Arguments")
_current: ContextVar[Memo | None] = ContextVar("search memo", default=None)


class Memo:
    """The results of the searches in one piece of a model, in order: recorded once, given back as often as it is rerun.

    Kept are score, and index in int32 where that can count the keys: 8 bytes for each head, query and slot.
    """

    def __init__(self) -> None:
        self.found: list[Found] = []
        self.rest: Iterator[Found] | None = None  # of what is given back; None: searches are recorded

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Keep the results of all searches in this block."""
        yield from self._active(None)

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Give back, in the same order, what was kept, instead of searching."""
        yield from self._active(iter(self.found))

    def _active(self, rest: Iterator[Found] | None) -> Iterator[None]:
        self.rest, token = rest, _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def answer(self, search: Callable[[], Found]) -> Found:
        """Return what a search finds, or what was kept of it."""
        if self.rest is not None:
            index, score = next(self.rest)
            return index.long(), score
        token = _current.set(None)  # a search may be made of others, of which only the whole is kept
        try:
            index, score = search()
        finally:
            _current.reset(token)
        narrow = torch.int32 if not index.numel() or int(index.max()) < 2**31 else torch.int64
        self.found.append((index.to(narrow), score))
        return index, score


def remembered(search: Callable[Arguments, Found]) -> Callable[Arguments, Found]:
    """Make a search one that a `Memo` records and gives back."""

    @wraps(search)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Found:
        memo = _current.get()
        if memo is None:
            return search(*args, **kwargs)
        return memo.answer(lambda: search(*args, **kwargs))

    return call
