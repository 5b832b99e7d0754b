"""Downloads of the loading classes: archives at hand are used, the network's many errors become one, none at home."""

from __future__ import annotations

import builtins
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch_geometric.data import Dataset
from torch_geometric.io import fs

TIMEOUT = 30.0  # seconds without an answer

_URLOPEN, _COPY = urllib.request.urlopen, fs.cp


class NetworkError(Exception):
    """Something could not be downloaded."""


class _Response:
    """A download that ends with an error where the server or the line stopped too early."""

    def __init__(self, response: Any) -> None:
        self.response, self.received = response, 0
        self.expected = int(response.headers.get("Content-Length") or 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.response, name)

    def read(self, size: int | None = None) -> bytes:
        try:
            chunk = self.response.read(size) if size is not None else self.response.read()
        except Exception as error:
            raise NetworkError(_reason(error)) from error
        self.received += len(chunk)
        if not chunk and self.received < self.expected:
            raise NetworkError(f"the download ended after {self.received:,} of {self.expected:,} bytes")
        return chunk


def _urlopen(url: Any, *positional: Any, **options: Any) -> _Response:
    try:
        return _Response(_URLOPEN(url, *positional, **{"timeout": TIMEOUT, **options}))
    except Exception as error:
        raise NetworkError(_reason(error)) from error


def _reason(error: BaseException) -> str:
    text = " ".join(str(getattr(error, "reason", None) or error).split())
    if isinstance(error, FileNotFoundError):  # fsspec's word for a server that does not have it
        text = f"Not Found: {text}"
    return text[:120] or type(error).__name__


@contextmanager
def fetching(archives: Mapping[str, Path]) -> Iterator[None]:
    """Let loading classes download, with one kind of error and no questions.

    Args:
        archives: files at hand, by the name under which a class would download them.

    Raises (inside):
        NetworkError: anything that goes wrong between here and the server.
    """

    def copy(source: str, target: str, *positional: Any, **options: Any) -> None:
        at_hand = archives.get(source.rsplit("/", 1)[-1])
        if at_hand is not None or fs.islocal(source):
            _COPY(str(at_hand or source), target, *positional, **options)
            return
        try:
            _COPY(source, target, *positional, **options)
        except Exception as error:
            raise NetworkError(_reason(error)) from error

    with ExitStack() as stack:
        stack.enter_context(patch.object(urllib.request, "urlopen", _urlopen))
        stack.enter_context(patch.object(fs, "cp", copy))
        # ogb asks before it fetches more than a gigabyte; who names the data set has decided.
        stack.enter_context(patch.object(builtins, "input", lambda *_: "y"))
        yield


@contextmanager
def neither_fetching_nor_processing() -> Iterator[None]:
    """Let loading classes only read what they processed before: nothing is downloaded, deleted or written."""
    with patch.object(Dataset, "_download", lambda _: None), patch.object(Dataset, "_process", lambda _: None):
        yield


def network_error(error: BaseException | None) -> NetworkError | None:
    """Return the `NetworkError` that an error was raised from or while handling, if there is one."""
    while error is not None and not isinstance(error, NetworkError):
        error = error.__cause__ or error.__context__
    return error
