"""What the tests of all data sets share: a network that is down, and code that hides in a file."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.error import URLError

from graphgps_kmip.data import DatasetRecord, GraphDataset, downloads, open_dataset


class Code:
    """A pickle that makes a folder when it is read."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.proof),)


@contextmanager
def offline() -> Iterator[None]:
    """Fail every download at once, also where there is a network."""
    error = URLError("no network")
    with patch.object(downloads, "urlopen", side_effect=error), patch.object(socket, "getaddrinfo", side_effect=error):
        yield


def opened(record: DatasetRecord, root: Path, **options: int | str) -> GraphDataset:
    """Open a data set with a network that is down."""
    with offline():
        return open_dataset(record, root, **options)
