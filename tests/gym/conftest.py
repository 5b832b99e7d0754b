"""GraphGym's config is open again after each test, whatever run froze it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch_geometric.graphgym.config import cfg


@pytest.fixture(autouse=True)
def _open_config() -> Iterator[None]:
    yield
    cfg.defrost()
