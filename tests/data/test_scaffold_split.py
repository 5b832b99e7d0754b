"""Scaffold split: groups stay whole, the largest train, ties and shares are those of DeepChem; scaffolds by RDKit."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphgps_kmip.data.scaffold_split import murcko_scaffold, scaffold_split
from graphgps_kmip.data.smiles_graph import read_smiles
from graphgps_kmip.errors import InputError

NO_RDKIT = "RDKit, which makes graphs of molecules, is not installed"


def one_by_one(scaffolds: list[int]) -> list[list[int]]:
    """Return the parts; the next group is looked for among all that are left."""
    counts, left, parts = Counter(scaffolds), set(scaffolds), [[], [], []]
    total = len(scaffolds)
    while left:
        group = max(left, key=lambda one: (counts[one], scaffolds.index(one)))
        left.remove(group)
        train, both = len(parts[0]) + counts[group], len(parts[0]) + len(parts[1]) + counts[group]
        part = 0 if 10 * train <= 8 * total else 1 if 10 * both <= 9 * total else 2
        parts[part] += [number for number, one in enumerate(scaffolds) if one == group]
    return [sorted(part) for part in parts]


@given(st.lists(st.integers(0, 12), max_size=60))
def test_every_molecule_is_in_one_part_and_no_scaffold_in_two(scaffolds: list[int]) -> None:
    parts = scaffold_split(scaffolds)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(scaffolds)))
    kinds = [{scaffolds[number] for number in part} for part in parts]
    assert sum(map(len, kinds)) == len(set(scaffolds))


@given(st.lists(st.integers(0, 12), max_size=60))
def test_groups_are_taken_by_size_and_the_last_of_equal_ones_first(scaffolds: list[int]) -> None:
    assert [part.tolist() for part in scaffold_split(scaffolds)] == one_by_one(scaffolds)


def test_ten_different_scaffolds_are_divided_8_1_1_from_the_end() -> None:
    train, valid, test = (part.tolist() for part in scaffold_split("abcdefghij"))
    assert (train, valid, test) == ([2, 3, 4, 5, 6, 7, 8, 9], [1], [0])  # of equal groups the last comes first


def test_a_group_that_does_not_fit_into_training_goes_on_as_a_whole() -> None:
    assert [part.tolist() for part in scaffold_split("aaaaaabbbc")] == [[0, 1, 2, 3, 4, 5, 9], [6, 7, 8], []]
    assert [part.tolist() for part in scaffold_split("aaaaaabbbb")] == [[0, 1, 2, 3, 4, 5], [], [6, 7, 8, 9]]


@pytest.mark.parametrize(
    ("smiles", "scaffold"),
    [
        ("CCO", ""),
        ("Cc1cc(Oc2nccc(CCC)c2)ccc1", "c1ccc(Oc2ccccn2)cc1"),
        ("C1CC1CCCC1CC1", "C(CC1CC1)CC1CC1"),
        ("CC(=O)C1CCCCC1", "C1CCCCC1"),
    ],
)
def test_a_scaffold_is_the_rings_and_what_links_them(smiles: str, scaffold: str) -> None:
    pytest.importorskip("rdkit", reason=NO_RDKIT)
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

    found = read_smiles(smiles)
    assert murcko_scaffold(found) == scaffold == MurckoScaffoldSmiles(mol=found, includeChirality=True)


def test_a_molecule_of_irregular_valence_has_a_graph_and_a_scaffold() -> None:
    pytest.importorskip("rdkit", reason=NO_RDKIT)
    aluminium = "O=C1O[Al]23(OC1=O)(OC(=O)C(=O)O2)OC(=O)C(=O)O3"
    with pytest.raises(InputError, match="is no molecule"):
        read_smiles(aluminium)
    found = read_smiles(aluminium, any_valence=True)
    assert (found.GetNumAtoms(), found.GetNumBonds()) == (19, 21)
    assert murcko_scaffold(found).count("[Al]") == 1
    with pytest.raises(InputError, match="is no molecule"):
        read_smiles("C1CC", any_valence=True)
