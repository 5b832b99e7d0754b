"""Molecules from SMILES: graphs with ogb's categories of atoms and bonds, through RDKit."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from graphgps_kmip.encoding.molecule import BOND
from graphgps_kmip.errors import DataError, InputError

if TYPE_CHECKING:
    from rdkit.Chem import Atom, Bond, Mol

CHIRALITIES = ["CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER"]
HYBRIDISATIONS = ["SP", "SP2", "SP3", "SP3D", "SP3D2"]
BONDS = ["SINGLE", "DOUBLE", "TRIPLE", "AROMATIC"]
STEREOS = ["STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY"]


def read_smiles(smiles: str, any_valence: bool = False) -> Mol:
    """Return RDKit's molecule of a SMILES text.

    Args:
        smiles (str): One molecule.
        any_valence (bool, optional): Keep atoms with more bonds than RDKit allows them, such as aluminium with six: its
            rules are stricter than those of the releases that older data sets were made with. (default: ``False``)

    Raises:
        DataError: RDKit is not installed.
        InputError: the text is no molecule.
    """
    Chem = _rdkit().Chem
    found = Chem.MolFromSmiles(smiles, sanitize=not any_valence)
    if found is not None and any_valence:
        found.UpdatePropertyCache(strict=False)
        steps = Chem.SanitizeFlags.SANITIZE_ALL ^ Chem.SanitizeFlags.SANITIZE_PROPERTIES
        if Chem.SanitizeMol(found, steps, catchErrors=True) != Chem.SanitizeFlags.SANITIZE_NONE:
            found = None
        else:
            Chem.AssignStereochemistry(found, cleanIt=True)
    if found is None:
        raise InputError(f"{str(smiles)[:40]!r} is no molecule")
    return found


def quiet_rdkit() -> AbstractContextManager[object]:
    """Return a context in which RDKit does not log the texts that it refuses.

    Raises:
        DataError: RDKit is not installed.
    """
    return _rdkit().rdBase.BlockLogs()


def _rdkit() -> ModuleType:
    try:
        import rdkit.Chem
        import rdkit.rdBase
    except ImportError as error:
        raise DataError(
            "its molecules come as text, and RDKit, which makes graphs of them, is not installed: pip install rdkit"
        ) from error
    return rdkit


def molecule(smiles: str) -> dict[str, np.ndarray]:
    """Return the graph of a molecule, see `molecule_graph`.

    Raises:
        DataError: RDKit is not installed.
        InputError: the text is no molecule.
    """
    return molecule_graph(read_smiles(smiles))


def molecule_graph(found: Mol) -> dict[str, np.ndarray]:
    """Return ``x`` (N, 9), ``edge_index`` (2, E) and ``edge_attr`` (E, 3) of a molecule, int64.

    Categories are ogb's; each bond is there in both directions, one behind the other.
    """
    bonds = list(found.GetBonds())
    ends = np.array([(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds], np.int64).reshape(-1, 2)
    kinds = np.array([_bond(bond) for bond in bonds], np.int64).reshape(-1, len(BOND))
    return {
        "x": np.array([_atom(atom) for atom in found.GetAtoms()], np.int64),
        "edge_index": np.stack([ends, ends[:, ::-1]], axis=1).reshape(-1, 2).T.copy(),
        "edge_attr": kinds.repeat(2, axis=0),
    }


def _atom(atom: Atom) -> list[int]:
    return [
        _place(range(1, 119), atom.GetAtomicNum()),
        _place(CHIRALITIES, str(atom.GetChiralTag())),
        _place(range(11), atom.GetTotalDegree()),
        _place(range(-5, 6), atom.GetFormalCharge()),
        _place(range(9), atom.GetTotalNumHs()),
        _place(range(5), atom.GetNumRadicalElectrons()),
        _place(HYBRIDISATIONS, str(atom.GetHybridization())),
        int(atom.GetIsAromatic()),
        int(atom.IsInRing()),
    ]


def _bond(bond: Bond) -> list[int]:
    stereo = STEREOS.index(str(bond.GetStereo()))
    return [_place(BONDS, str(bond.GetBondType())), stereo, int(bond.GetIsConjugated())]


def _place(values: list[str] | range, value: str | int) -> int:
    """Return the index of a value; that behind the last for others, which ogb calls "misc"."""
    return values.index(value) if value in values else len(values)
