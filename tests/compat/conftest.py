"""What the tests of public files share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch_geometric.graphgym.config import cfg


@pytest.fixture(autouse=True)
def _config_afterwards() -> Iterator[None]:
    yield
    cfg.defrost()
