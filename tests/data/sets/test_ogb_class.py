"""The import of ogb, and what is known of its features without importing it."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from graphgps_kmip.data.ogb_loading import import_ogb
from graphgps_kmip.encoding.molecule import ATOM, BOND


def test_the_categories_of_atoms_and_bonds_are_those_of_ogb() -> None:
    features = import_ogb("ogb.utils.features")
    assert list(ATOM) == features.get_atom_feature_dims()
    assert list(BOND) == features.get_bond_feature_dims()


def test_importing_ogb_does_not_ask_the_network_for_newer_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = ModuleType("outdated")
    asking.check_outdated = lambda *_: (False, "")
    monkeypatch.setitem(sys.modules, "outdated", asking)
    for name in ("ogb", "ogb.version"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert import_ogb("ogb.version").check_outdated is None
    assert sys.modules["outdated"] is asking  # others get the package as it was
