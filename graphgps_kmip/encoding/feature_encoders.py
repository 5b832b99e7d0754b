"""Input encoders of node and edge features: LinearNode, TypeDictNode, LinearEdge, TypeDictEdge, DummyEdge.

Modules ``batch -> batch`` that replace ``batch.x`` or ``batch.edge_attr`` by vectors of width C; and the look-ups of
categorical columns that all input encoders share. Atoms and bonds (ogb's features) and nodes and edges of syntax trees
(ogbg-code2) are sums of an embedding per column.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.host_copies import host_copy


def type_ids(types: Tensor, num_types: int, name: str, key: str) -> Tensor:
    """Return types as int64 (rows,) after checking that an embedding table of ``num_types`` rows has them.

    Args:
        types (Tensor): One column of integers, of any dtype.
        num_types (int): Size of the table.
        name (str): Attribute that holds the types, for the error.
        key (str): Config key of the table's size, for the error.

    Shapes: (rows,) or (rows, 1) -> (rows,).

    Raises:
        InputError: several columns, or a type outside 0..num_types - 1 (on a GPU the table itself could not say which).
    """
    if types.dim() > 2 or (types.dim() == 2 and types.size(1) != 1):
        raise InputError(f"{name} must hold one type a row, got shape {tuple(types.shape)}: use a linear encoder")
    here = host_copy(types)
    types = types.reshape(-1).long()
    low, high = (int(here.min()), int(here.max())) if here.numel() else (0, 0)
    if low < 0 or high >= num_types:
        raise InputError(f"{name} holds types {low} to {high}, but {key} is {num_types}: set it to {high + 1} or more")
    return types


def embedded(tables: Collection[nn.Embedding], columns: Tensor, name: str, encoder: str) -> Tensor:
    """Return the sum over the columns of the vector that a column's table has for the value in it.

    Args:
        tables (Collection[nn.Embedding]): One for each column.
        columns (Tensor): Integers, of any dtype.
        name (str): Attribute that holds them, for the error.
        encoder (str): Public name of the encoder, for the error.

    Shapes: (rows, len(tables)) -> (rows, C).

    Raises:
        InputError: another number of columns, or a value without a row (on a GPU the table itself could not say which).
    """
    if columns.dim() != 2 or columns.size(1) != len(tables):
        raise InputError(f"{encoder} needs {name} (rows, {len(tables)}), integers, got shape {tuple(columns.shape)}")
    here, columns = host_copy(columns).long(), columns.long()
    sizes = torch.tensor([table.num_embeddings for table in tables])
    outside = ((here < 0) | (here >= sizes)).nonzero()
    if len(outside):
        row, column = outside[0].tolist()
        raise InputError(
            f"{encoder}: {name} holds {int(here[row, column])} in row {row}, column {column}, where values 0 to "
            f"{int(sizes[column]) - 1} are known: these are not the features this encoder was made for"
        )
    return sum(table(column) for table, column in zip(tables, columns.T, strict=True))


class LinearNodeEncoder(nn.Module):
    """Encode float features: x' = W x + b.

    Args:
        dim_in (int): Columns of the raw features.
        dim (int): Width C.

    Shapes: batch.x (N, dim_in) -> (N, C), in the dtype of the weights.
    """

    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(dim_in, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        batch.x = self.encoder(batch.x.to(self.encoder.weight.dtype))
        return batch


class TypeDictNodeEncoder(nn.Module):
    """Look up a learned vector for the type of each node.

    Args:
        num_types (int): Number of types, the config's ``dataset.node_encoder_num_types``.
        dim (int): Width C.

    Shapes: batch.x (N,) or (N, 1), types in 0..num_types - 1 -> (N, C).

    Raises:
        InputError: num_types < 1 when built; a type outside the range, or several columns, when called.
    """

    def __init__(self, num_types: int, dim: int) -> None:
        super().__init__()
        if num_types < 1:
            raise InputError(f"dataset.node_encoder_num_types must be at least 1 for TypeDictNode, got {num_types}")
        self.encoder = nn.Embedding(num_types, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        types = type_ids(batch.x, self.encoder.num_embeddings, "x", "dataset.node_encoder_num_types")
        batch.x = self.encoder(types)
        return batch


class ConstantNodeEncoder(nn.Module):
    """Give every node the same learned vector, for graphs whose nodes have no features; ``batch.x`` is not read.

    Args:
        dim (int): Width C.

    Shapes: N nodes -> batch.x (N, C).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.encoder = nn.Embedding(1, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        batch.x = self.encoder.weight.expand(batch.num_nodes, -1)  # (N, C)
        return batch


def edge_features(batch: Batch, encoder: str) -> Tensor:
    """Return ``batch.edge_attr``.

    Args:
        batch (Batch): Graphs.
        encoder (str): Public name of the encoder that needs it, for the error.

    Raises:
        InputError: there is none.
    """
    if batch.edge_attr is None:
        raise InputError(f"{encoder} needs edge features, these graphs have none: use the edge encoder DummyEdge")
    return batch.edge_attr


class LinearEdgeEncoder(nn.Module):
    """Encode float features: e' = W e + b.

    Args:
        dim_in (int): Columns of the raw features.
        dim (int): Width C.

    Shapes: batch.edge_attr (E, dim_in), or (E,) for one column -> (E, C), in the dtype of the weights.

    Raises:
        InputError: the edges have no features, when called.
    """

    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(dim_in, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.edge_attr``."""
        features = edge_features(batch, "LinearEdge")
        features = features[:, None] if features.dim() == 1 else features  # (E, dim_in)
        batch.edge_attr = self.encoder(features.to(self.encoder.weight.dtype))
        return batch


class TypeDictEdgeEncoder(nn.Module):
    """Look up a learned vector for the type of each edge.

    Args:
        num_types (int): Number of types, the config's ``dataset.edge_encoder_num_types``.
        dim (int): Width C.

    Shapes: batch.edge_attr (E,) or (E, 1), types in 0..num_types - 1 -> (E, C).

    Raises:
        InputError: num_types < 1 when built; no types, one outside the range, or several columns, when called.
    """

    def __init__(self, num_types: int, dim: int) -> None:
        super().__init__()
        if num_types < 1:
            raise InputError(f"dataset.edge_encoder_num_types must be at least 1 for TypeDictEdge, got {num_types}")
        self.encoder = nn.Embedding(num_types, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.edge_attr``."""
        types = edge_features(batch, "TypeDictEdge")
        types = type_ids(types, self.encoder.num_embeddings, "edge_attr", "dataset.edge_encoder_num_types")
        batch.edge_attr = self.encoder(types)
        return batch


class ConstantEdgeEncoder(nn.Module):
    """Give every edge the same learned vector (the public name is ``DummyEdge``); raw edge features are not read.

    Args:
        dim (int): Width C.

    Shapes: edge_index (2, E) -> batch.edge_attr (E, C).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.encoder = nn.Embedding(1, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.edge_attr``."""
        batch.edge_attr = self.encoder.weight.expand(batch.edge_index.size(1), -1)  # (E, C)
        return batch


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
