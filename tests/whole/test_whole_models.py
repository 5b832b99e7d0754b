"""Whole models of public YAML files compute what their own code computes: predictions, gradients, dropouts.

The default run compares one file of each code and kind of network, a thorough one all that are stored here; with
GRAPHGPS_KMIP_WHOLE_RECORDS, the folder of all records, all are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_geometric.graphgym.config import cfg

import graphgps_kmip.gym  # noqa: F401 (registers the networks)
from tests.whole.whole_models import compare_with_quirks, public_file
from tests.whole.whole_records import all_names, fixture_names, load_record

NAMES = sorted({*fixture_names(), *all_names()})
# Of each code and kind of network one, that with the smallest model.
FEW = {
    (name[0], load_record(name)[1]["model"]): name
    for name in sorted(fixture_names(), key=lambda name: -len(load_record(name)[1]["state"]))
}.values()
# Copies of GraphGPS's files, to the byte: nothing in them tells whose code they were run with. Where that computes
# something else, the dialect has to be given.
COPIED = {
    "E__configs__GPS__pcqm4m-GPSdeep+RWSE": "exphormer",
    "K__configs__Not-relevant__Experiments-from-GPS__GPS__pcqm4m-GPSdeep+RWSE": "kmip-thesis",
}
# Rounding decides, on one processor more than on another, for the reason that docs/public-files.md gives.
ROUNDED = {
    "G__tests__configs__graph__ogbg-ppa": "a batch norm of equal rows, scaled to length 1, in train mode",
}


@pytest.fixture(autouse=True)
def _open_again() -> Iterator[None]:
    yield
    cfg.defrost()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FEW else [pytest.mark.thorough])
        for name in sorted({*NAMES} - {*COPIED, *ROUNDED})
    ],
)
def test_a_public_file_computes_what_its_own_code_computes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, record = load_record(name)
    result, _ = compare_with_quirks(public_file(settings, tmp_path), record, monkeypatch)
    assert result.problems() == []


@pytest.mark.parametrize("name", sorted({*NAMES} & {*COPIED}))
def test_a_copied_file_computes_what_its_own_code_computes_when_its_dialect_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, record = load_record(name)
    file = public_file(settings | {"dialect": COPIED[name]}, tmp_path)
    assert compare_with_quirks(file, record, monkeypatch)[0].problems() == []


@pytest.mark.parametrize("name", sorted({*NAMES} & {*ROUNDED}))
def test_a_file_that_rounding_decides_computes_nearly_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, record = load_record(name)
    result, _ = compare_with_quirks(public_file(settings, tmp_path), record, monkeypatch)
    assert result.dropouts == []
    assert max(error for error, _ in result.errors.values()) < 1e-6


def test_the_selection_holds_every_code_and_every_kind_of_network() -> None:
    kinds = {(name[0], load_record(name)[1]["model"]) for name in fixture_names()}
    assert kinds >= {
        *((code, "GPSModel") for code in "EGKL"),
        *((code, "custom_gnn") for code in "EGKL"),
        *((code, "MultiModel") for code in "EK"),
        *((code, "SANTransformer") for code in "EG"),
        *((code, "gnn") for code in "GK"),
        ("G", "Graphormer"),
        ("G", "Performer"),
        ("S", "Exphormer"),
        ("R", "GritTransformer"),
    }
