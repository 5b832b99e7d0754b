"""Encoders of atoms and bonds (ogb's features) and of syntax trees (ogbg-code2): sums of an embedding per column."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch_geometric.data import Batch

from graphgps_kmip.encoding.feature_encoders import edge_features, embedded
from graphgps_kmip.errors import InputError

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


class SyntaxNodeEncoder(nn.Module):
    """Sum the learned vectors of a node's type, its attribute and its depth in the tree.

    Args:
        dim (int): Width C.
        num_types (int, optional): Node types of ogbg-code2. (default: 98)
        num_attributes (int, optional): Node attributes of ogbg-code2. (default: 10030)
        max_depth (int, optional): Deeper nodes count as this deep. (default: 20)

    Shapes: batch.x (N, 2), type and attribute, and batch.node_depth (N,) or (N, 1), integers -> batch.x (N, C).

    Raises:
        InputError: node_depth is missing, other columns, or a value outside its vocabulary, when called.
    """

    def __init__(self, dim: int, num_types: int = 98, num_attributes: int = 10030, max_depth: int = 20) -> None:
        super().__init__()
        self.type_encoder = nn.Embedding(num_types, dim)
        self.attribute_encoder = nn.Embedding(num_attributes, dim)
        self.depth_encoder = nn.Embedding(max_depth + 1, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        if batch.get("node_depth") is None:
            raise InputError("ASTNode needs node_depth (N,), the depth in the syntax tree: these graphs have none")
        depth = batch.node_depth.reshape(-1, 1).clamp(max=self.depth_encoder.num_embeddings - 1)
        x = embedded((self.type_encoder, self.attribute_encoder), batch.x, "x", "ASTNode")
        batch.x = x + embedded((self.depth_encoder,), depth, "node_depth", "ASTNode")
        return batch


class SyntaxEdgeEncoder(nn.Module):
    """Sum the learned vectors of an edge's type (0 syntax tree, 1 next token) and direction (0 as is, 1 reversed).

    Args:
        dim (int): Width C.

    Shapes: batch.edge_attr (E, 2), type and direction -> (E, C).

    Raises:
        InputError: no edge features, other columns, or a value other than 0 and 1, when called.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embedding_type = nn.Embedding(2, dim)
        self.embedding_direction = nn.Embedding(2, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.edge_attr``."""
        tables = (self.embedding_type, self.embedding_direction)
        batch.edge_attr = embedded(tables, edge_features(batch, "ASTEdge"), "edge_attr", "ASTEdge")
        return batch
