"""The raw files that these tests write are tiny: they have not the checksums of the published ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_checksums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.node.get_closest_marker("dataset"):  # those read real files
        monkeypatch.setattr("graphgps_kmip.data.raw_files.SHA256", {})


@pytest.fixture
def real_data() -> Path:
    """Return the folder of real raw data."""
    return Path(os.environ["GRAPHGPS_KMIP_DATA"])
