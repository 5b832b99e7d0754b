"""The raw files that these tests write are tiny: they have not the checksums of the published ones."""

from __future__ import annotations

import pytest

from graphgps_kmip.data.raw_files import SHA256


@pytest.fixture(autouse=True)
def no_checksums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.node.get_closest_marker("dataset"):  # those read real files
        for name in tuple(SHA256):
            monkeypatch.delitem(SHA256, name)
