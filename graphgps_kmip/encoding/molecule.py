"""Encoders of atoms and bonds with ogb's integer features: the sum of one learned vector for each column."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch_geometric.data import Batch

from graphgps_kmip.encoding.feature_encoders import edge_features, embedded

# Constants, for importing ogb takes a second; a test compares them with ogb's own functions.
ATOM = (119, 5, 12, 12, 10, 6, 6, 2, 2)  # element, chirality, degree, charge, hydrogens, radicals, hybridisation, ...
BOND = (5, 6, 2)  # type, stereo, conjugated


class AtomEncoder(nn.Module):
    """Sum the learned vectors of an atom's features; parameters are named as ogb's, so that checkpoints fit.

    Args:
        vocabulary (Sequence[int]): Number of values of each column.
        dim (int): Width C.

    Shapes: batch.x (N, len(vocabulary)), integers -> (N, C).

    Raises:
        InputError: another number of columns, or a value outside its vocabulary, when called.
    """

    def __init__(self, vocabulary: Sequence[int], dim: int) -> None:
        super().__init__()
        self.atom_embedding_list = _tables(vocabulary, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        batch.x = embedded(self.atom_embedding_list, batch.x, "x", "Atom")
        return batch


class BondEncoder(nn.Module):
    """Sum the learned vectors of a bond's features; parameters are named as ogb's, so that checkpoints fit.

    Args:
        vocabulary (Sequence[int]): Number of values of each column.
        dim (int): Width C.

    Shapes: batch.edge_attr (E, len(vocabulary)), integers -> (E, C).

    Raises:
        InputError: no edge features, another number of columns, or a value outside its vocabulary, when called.
    """

    def __init__(self, vocabulary: Sequence[int], dim: int) -> None:
        super().__init__()
        self.bond_embedding_list = _tables(vocabulary, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.edge_attr``."""
        bonds = edge_features(batch, "Bond")
        batch.edge_attr = embedded(self.bond_embedding_list, bonds, "edge_attr", "Bond")
        return batch


def _tables(vocabulary: Sequence[int], dim: int) -> nn.ModuleList:
    tables = nn.ModuleList(nn.Embedding(size, dim) for size in vocabulary)
    for table in tables:
        nn.init.xavier_uniform_(table.weight)
    return tables
