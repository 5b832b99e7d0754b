"""Whole models of public YAML files compute what their own code computes: predictions, gradients, dropouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_geometric.graphgym.config import cfg

import graphgps_kmip.gym  # noqa: F401 (registers the networks)
from tests.whole.whole_models import compare
from tests.whole.whole_records import VARIABLE, all_names, fixture_names, load_record


@pytest.fixture(autouse=True)
def _open_again() -> Iterator[None]:
    yield
    cfg.defrost()


@pytest.mark.parametrize("name", fixture_names())
def test_a_public_file_computes_what_its_own_code_computes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, record = load_record(name)
    assert compare(settings, record, tmp_path, monkeypatch).problems() == []


@pytest.mark.skipif(not all_names(), reason=f"{VARIABLE}, the folder of all records, is not set")
@pytest.mark.parametrize("name", [name for name in all_names() if name not in fixture_names()])
def test_every_public_file_computes_what_its_own_code_computes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, record = load_record(name)
    assert compare(settings, record, tmp_path, monkeypatch).problems() == []
