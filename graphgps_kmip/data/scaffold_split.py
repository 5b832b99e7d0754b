"""Scaffold split of molecules (Wu et al. 2018, MoleculeNet): no ring system of the training set occurs in the others.

The scaffold of a molecule are its rings and what links them (Bemis and Murcko 1996). Molecules of one scaffold stay
together, and rare scaffolds are those that validate and test. The order is that of DeepChem, which made the splits of
MoleculeNet and, by way of them, of ogb's molecules.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rdkit.Chem import Mol

TRAINED, KNOWN = Fraction(8, 10), Fraction(9, 10)  # shares: training, training and validation


def scaffold_split(scaffolds: Sequence[Hashable]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divide molecules by their scaffolds into parts for training (8 of 10), validation and test (1 each).

    Groups of one scaffold are taken from the largest to the smallest, of equal ones that first whose first molecule has
    the **highest** number. Each goes as a whole to training if that does not make it larger than its share, else to
    validation if both together stay in theirs, else to the test.

    Args:
        scaffolds (sequence): Of each molecule; equal ones are of one scaffold.

    Returns:
        tuple: Numbers of the molecules of the three parts, int64, each in ascending order.
    """
    groups: dict[Hashable, list[int]] = {}
    for number, scaffold in enumerate(scaffolds):
        groups.setdefault(scaffold, []).append(number)
    train: list[int] = []
    valid: list[int] = []
    test: list[int] = []
    for group in sorted(groups.values(), key=lambda group: (len(group), group[0]), reverse=True):
        if len(train) + len(group) <= TRAINED * len(scaffolds):
            train += group
        elif len(train) + len(valid) + len(group) <= KNOWN * len(scaffolds):
            valid += group
        else:
            test += group
    return tuple(np.sort(np.array(part, np.int64)) for part in (train, valid, test))


def murcko_scaffold(found: Mol) -> str:
    """Return the SMILES of RDKit's Bemis-Murcko scaffold, chirality included; "" for a molecule without rings.

    RDKit's own ``MurckoScaffoldSmiles`` refuses atoms with more bonds than its rules of valence allow.
    """
    from rdkit import Chem

    scaffold = Chem.MurckoDecompose(found)
    scaffold.ClearComputedProps()
    scaffold.UpdatePropertyCache(strict=False)
    Chem.GetSymmSSSR(scaffold)
    return Chem.MolToSmiles(scaffold, isomericSmiles=True)
