"""The laws run over every row of the table of attentions."""

from __future__ import annotations

import pytest

import graphgps_kmip.networks  # noqa: F401 (registers k-MIP)
from graphgps_kmip.registry import entries


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "attention_row" in metafunc.fixturenames:
        rows = list(entries("attention").values())
        metafunc.parametrize("attention_row", rows, ids=[row.name for row in rows])
