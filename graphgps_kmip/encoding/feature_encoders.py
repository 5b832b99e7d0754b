"""Input encoders of node and edge features: LinearNode, TypeDictNode, LinearEdge, TypeDictEdge, DummyEdge, Atom, Bond.

Modules ``batch -> batch`` that replace ``batch.x`` or ``batch.edge_attr`` (their ``attribute``) by vectors of width C.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.host_copies import host_copy


def read_features(batch: Batch, attribute: str, encoder: str) -> Tensor:
    """Return ``batch.x`` or ``batch.edge_attr``; an `InputError` naming the encoder where edges have no features."""
    if attribute == "edge_attr" and batch.edge_attr is None:
        raise InputError(f"{encoder} needs edge features, these graphs have none: use the edge encoder DummyEdge")
    return batch[attribute]


def sum_embeddings(tables: Collection[nn.Embedding], columns: Tensor, attribute: str, encoder: str) -> Tensor:
    """Return the sum over the columns of the vector that a column's table has for the value in it.

    Shapes: (rows, len(tables)), integers -> (rows, C).

    Raises:
        InputError: another number of columns, or a value without a row.
    """
    if columns.dim() != 2 or columns.size(1) != len(tables):
        raise InputError(
            f"{encoder} needs {attribute} (rows, {len(tables)}), integers, got shape {tuple(columns.shape)}"
        )
    on_host, columns = host_copy(columns).long(), columns.long()
    sizes = torch.tensor([table.num_embeddings for table in tables])
    outside = ((on_host < 0) | (on_host >= sizes)).nonzero()
    if len(outside):
        row, column = outside[0].tolist()
        raise InputError(
            f"{encoder}: {attribute} holds {int(on_host[row, column])} in row {row}, column {column}, where values 0 "
            f"to {int(sizes[column]) - 1} are known: these are not the features this encoder was made for"
        )
    return sum(table(column) for table, column in zip(tables, columns.T, strict=True))


def map_columns(linear: nn.Linear, columns: Tensor) -> Tensor:
    """Apply a linear map in its dtype; the result has both as ``linear_columns``, for who takes a second map of it."""
    columns = columns.to(linear.weight.dtype)
    rows = linear(columns)
    rows.linear_columns = linear, columns
    return rows


class LinearNodeEncoder(nn.Module):
    """Encode float features of nodes: x' = W x + b.

    Args:
        dim_in (int): Columns of the raw features.
        dim (int): Width C.

    Shapes: batch.x (N, dim_in), or (N,) for one column -> (N, C), in the dtype of the weights.
    """

    attribute = "x"

    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(dim_in, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace the features."""
        features = read_features(batch, self.attribute, "LinearEdge")
        features = features[:, None] if features.dim() == 1 else features  # (rows, dim_in)
        batch[self.attribute] = map_columns(self.encoder, features)
        return batch


class LinearEdgeEncoder(LinearNodeEncoder):
    """Encode float features of edges, as `LinearNodeEncoder` those of nodes; an `InputError` where there are none."""

    attribute = "edge_attr"


class TypeDictNodeEncoder(nn.Module):
    """Look up a learned vector for the type of each node.

    Args:
        num_types (int): Number of types, the config's ``dataset.node_encoder_num_types``.
        dim (int): Width C.

    Shapes: batch.x (N,) or (N, 1), types in 0..num_types - 1 -> (N, C).

    Raises:
        InputError: num_types < 1 when built; a type outside the range, or several columns, when called.
    """

    attribute, name, key = "x", "TypeDictNode", "dataset.node_encoder_num_types"

    def __init__(self, num_types: int, dim: int) -> None:
        super().__init__()
        if num_types < 1:
            raise InputError(f"{self.key} must be at least 1 for {self.name}, got {num_types}")
        self.encoder = nn.Embedding(num_types, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace the features."""
        types, num_types = read_features(batch, self.attribute, self.name), self.encoder.num_embeddings
        if types.dim() > 2 or (types.dim() == 2 and types.size(1) != 1):
            raise InputError(
                f"{self.attribute} must hold one type a row, got shape {tuple(types.shape)}: use a linear encoder"
            )
        on_host = host_copy(types)
        low, high = (int(on_host.min()), int(on_host.max())) if on_host.numel() else (0, 0)
        if low < 0 or high >= num_types:  # on a GPU the table itself could not say which
            raise InputError(
                f"{self.attribute} holds types {low} to {high}, but {self.key} is {num_types}: set it to {high + 1} "
                "or more"
            )
        batch[self.attribute] = self.encoder(types.reshape(-1).long())
        return batch


class TypeDictEdgeEncoder(TypeDictNodeEncoder):
    """Look up a learned vector for the type of each edge, as `TypeDictNodeEncoder` does for nodes."""

    attribute, name, key = "edge_attr", "TypeDictEdge", "dataset.edge_encoder_num_types"


class ConstantNodeEncoder(nn.Module):
    """Give every node the same learned vector, for graphs whose nodes have no features; ``batch.x`` is not read.

    Args:
        dim (int): Width C.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.encoder = nn.Embedding(1, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        batch.x = self.encoder.weight.expand(batch.num_nodes, -1)
        return batch


class ConstantEdgeEncoder(ConstantNodeEncoder):
    """Give every edge the same learned vector (the public name is ``DummyEdge``); edge features are not read."""

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.edge_attr``."""
        batch.edge_attr = self.encoder.weight.expand(batch.edge_index.size(1), -1)
        return batch


# Constants, for importing ogb takes a second; a test compares them with ogb's own functions.
ATOM = (119, 5, 12, 12, 10, 6, 6, 2, 2)  # element, chirality, degree, charge, hydrogens, radicals, hybridisation, ...
BOND = (5, 6, 2)  # type, stereo, conjugated


def _make_tables(vocabulary: Sequence[int], dim: int) -> nn.ModuleList:
    tables = nn.ModuleList(nn.Embedding(size, dim) for size in vocabulary)
    for table in tables:
        nn.init.xavier_uniform_(table.weight)
    return tables


class AtomEncoder(nn.Module):
    """Sum the learned vectors of an atom's features; parameters are named as ogb's, so that checkpoints fit.

    Args:
        vocabulary (Sequence[int]): Number of values of each column.
        dim (int): Width C.

    Shapes: batch.x (N, len(vocabulary)), integers -> (N, C).
    """

    def __init__(self, vocabulary: Sequence[int], dim: int) -> None:
        super().__init__()
        self.atom_embedding_list = _make_tables(vocabulary, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        batch.x = sum_embeddings(self.atom_embedding_list, batch.x, "x", "Atom")
        return batch


class BondEncoder(nn.Module):
    """Sum the learned vectors of a bond's features, ``batch.edge_attr``, as `AtomEncoder` those of an atom's."""

    def __init__(self, vocabulary: Sequence[int], dim: int) -> None:
        super().__init__()
        self.bond_embedding_list = _make_tables(vocabulary, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.edge_attr``."""
        bonds = read_features(batch, "edge_attr", "Bond")
        batch.edge_attr = sum_embeddings(self.bond_embedding_list, bonds, "edge_attr", "Bond")
        return batch


class SyntaxNodeEncoder(nn.Module):
    """Sum the learned vectors of a node's type, its attribute and its depth in the tree, as in ogbg-code2.

    Args:
        dim (int): Width C.

    Shapes: batch.x (N, 2), type and attribute, and batch.node_depth (N,) or (N, 1), integers -> batch.x (N, C).

    Raises:
        InputError: node_depth is missing, other columns, or a value outside its vocabulary, when called.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.type_encoder = nn.Embedding(98, dim)
        self.attribute_encoder = nn.Embedding(10030, dim)
        self.depth_encoder = nn.Embedding(21, dim)  # deeper nodes count as 20 deep

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        if batch.get("node_depth") is None:
            raise InputError("ASTNode needs node_depth (N,), the depth in the syntax tree: these graphs have none")
        depth = batch.node_depth.reshape(-1, 1).clamp(max=self.depth_encoder.num_embeddings - 1)
        x = sum_embeddings((self.type_encoder, self.attribute_encoder), batch.x, "x", "ASTNode")
        batch.x = x + sum_embeddings((self.depth_encoder,), depth, "node_depth", "ASTNode")
        return batch


class SyntaxEdgeEncoder(nn.Module):
    """Sum the learned vectors of an edge's type (0 syntax tree, 1 next token) and direction (0 as is, 1 reversed).

    Args:
        dim (int): Width C.

    Shapes: batch.edge_attr (E, 2), type and direction -> (E, C).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embedding_type = nn.Embedding(2, dim)
        self.embedding_direction = nn.Embedding(2, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.edge_attr``."""
        tables = (self.embedding_type, self.embedding_direction)
        edges = read_features(batch, "edge_attr", "ASTEdge")
        batch.edge_attr = sum_embeddings(tables, edges, "edge_attr", "ASTEdge")
        return batch
