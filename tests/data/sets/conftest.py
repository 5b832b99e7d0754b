"""The folder of real raw data, which some tests read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def real_data() -> Path:
    """Return the folder of real raw data."""
    return Path(os.environ["GRAPHGPS_KMIP_DATA"])
