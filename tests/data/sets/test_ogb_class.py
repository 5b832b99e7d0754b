"""What is known of ogb's features without importing ogb, which would ask the network for newer releases of itself."""

from __future__ import annotations

import pytest
from ogb.utils import features

from graphgps_kmip.data import smiles_graph
from graphgps_kmip.encoding.molecule import ATOM, BOND
from tests.processes import preloaded


def test_the_categories_of_atoms_and_bonds_are_those_of_ogb() -> None:
    assert list(ATOM) == features.get_atom_feature_dims()
    assert list(BOND) == features.get_bond_feature_dims()
    named = [smiles_graph.CHIRALITIES, smiles_graph.HYBRIDISATIONS, smiles_graph.BONDS, smiles_graph.STEREOS]
    keys = ("chirality", "hybridization", "bond_type", "bond_stereo")
    theirs = [features.allowable_features[f"possible_{key}_list"] for key in keys]
    assert named == [[name for name in names if name != "misc"] for names in theirs]


def test_molecules_are_those_of_ogb() -> None:
    pytest.importorskip("rdkit", reason="RDKit, which makes graphs of molecules, is not installed")
    from ogb.utils.mol import smiles2graph

    for smiles in ("C", "C=C", "O1C=C[C@H]([C@H]1O2)c3c2cc(OC)c4c3OC(=O)C5=C4CCC(=O)5", "[Fe+3]", "F/C=C/F", "[2H]"):
        ours, theirs = smiles_graph.molecule(smiles), smiles2graph(smiles)
        for key, name in (("x", "node_feat"), ("edge_index", "edge_index"), ("edge_attr", "edge_feat")):
            assert ours[key].tolist() == theirs[name].tolist(), smiles


def test_no_module_of_data_sets_imports_ogb() -> None:
    code = "import sys, graphgps_kmip.data; sys.exit('ogb' in sys.modules or 'outdated' in sys.modules)"
    assert preloaded("-c", code).returncode == 0
