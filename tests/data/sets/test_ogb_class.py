"""What is known of ogb's features without importing ogb, which would ask the network for newer releases of itself."""

from __future__ import annotations

from ogb.utils import features

from graphgps_kmip.encoding.feature_encoders import ATOM, BOND
from tests.processes import preloaded


def test_the_numbers_of_categories_of_atoms_and_bonds_are_those_of_ogb() -> None:
    assert list(ATOM) == features.get_atom_feature_dims()
    assert list(BOND) == features.get_bond_feature_dims()


def test_no_module_of_data_sets_imports_ogb() -> None:
    code = "import sys, graphgps_kmip.data; sys.exit('ogb' in sys.modules or 'outdated' in sys.modules)"
    assert preloaded("-c", code).returncode == 0
