"""Node encoder modules: ``batch -> batch`` with ``batch.x`` replaced by vectors of width C.

Edge encoder modules: ``batch -> batch`` with ``batch.edge_attr`` replaced by vectors of width C.

Categorical inputs: checks and look-ups shared by the encoders of nodes and edges.

An encoder of nodes at work on edges (ERE, RWSEEdge): precomputed numbers of an edge beside its features.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import BatchNorm

from graphgps_kmip.errors import InputError


def type_ids(types: Tensor, num_types: int, name: str, key: str) -> Tensor:
    """Return types as int64 (rows,) after checking that an embedding table of ``num_types`` rows has them.

    Args:
        types: one column of integers, of any dtype.
        num_types: size of the table.
        name: attribute that holds the types, for the error.
        key: config key of the table's size, for the error.

    Shapes: (rows,) or (rows, 1) -> (rows,).

    Raises:
        ValueError: several columns, or a type outside 0..num_types - 1 (on a GPU the table itself could not say which).
    """
    if types.dim() > 2 or (types.dim() == 2 and types.size(1) != 1):
        raise InputError(f"{name} must hold one type a row, got shape {tuple(types.shape)}: use a linear encoder")
    types = types.reshape(-1).long()
    low, high = (int(types.min()), int(types.max())) if types.numel() else (0, 0)
    if low < 0 or high >= num_types:
        raise InputError(f"{name} holds types {low} to {high}, but {key} is {num_types}: set it to {high + 1} or more")
    return types


def embedded(tables: Collection[nn.Embedding], columns: Tensor, name: str, encoder: str) -> Tensor:
    """Return the sum over the columns of the vector that a column's table has for the value in it.

    Args:
        tables: one for each column.
        columns: integers, of any dtype.
        name: attribute that holds them, for the error.
        encoder: public name of the encoder, for the error.

    Shapes: (rows, len(tables)) -> (rows, C).

    Raises:
        ValueError: another number of columns, or a value without a row (on a GPU the table itself could not say which).
    """
    if columns.dim() != 2 or columns.size(1) != len(tables):
        raise InputError(f"{encoder} needs {name} (rows, {len(tables)}), integers, got shape {tuple(columns.shape)}")
    columns = columns.long()
    sizes = columns.new_tensor([table.num_embeddings for table in tables])
    outside = ((columns < 0) | (columns >= sizes)).nonzero()
    if len(outside):
        row, column = outside[0].tolist()
        raise InputError(
            f"{encoder}: {name} holds {int(columns[row, column])} in row {row}, column {column}, where values 0 to "
            f"{int(sizes[column]) - 1} are known: these are not the features this encoder was made for"
        )
    return sum(table(column) for table, column in zip(tables, columns.T, strict=True))


class LinearNodeEncoder(nn.Module):
    """Encode float features: x' = W x + b.

    Args:
        dim_in: columns of the raw features.
        dim: width C.

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
        num_types: number of types, the config's ``dataset.node_encoder_num_types``.
        dim: width C.

    Shapes: batch.x (N,) or (N, 1), types in 0..num_types - 1 -> (N, C).

    Raises:
        ValueError: num_types < 1 when built; a type outside the range, or several columns, when called.
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
        dim: width C.

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
        batch: graphs.
        encoder: public name of the encoder that needs it, for the error.

    Raises:
        ValueError: there is none.
    """
    if batch.edge_attr is None:
        raise InputError(f"{encoder} needs edge features, these graphs have none: use the edge encoder DummyEdge")
    return batch.edge_attr


class LinearEdgeEncoder(nn.Module):
    """Encode float features: e' = W e + b.

    Args:
        dim_in: columns of the raw features.
        dim: width C.

    Shapes: batch.edge_attr (E, dim_in), or (E,) for one column -> (E, C), in the dtype of the weights.

    Raises:
        ValueError: the edges have no features, when called.
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
        num_types: number of types, the config's ``dataset.edge_encoder_num_types``.
        dim: width C.

    Shapes: batch.edge_attr (E,) or (E, 1), types in 0..num_types - 1 -> (E, C).

    Raises:
        ValueError: num_types < 1 when built; no types, one outside the range, or several columns, when called.
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
        dim: width C.

    Shapes: edge_index (2, E) -> batch.edge_attr (E, C).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.encoder = nn.Embedding(1, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.edge_attr``."""
        batch.edge_attr = self.encoder.weight.expand(batch.edge_index.size(1), -1)  # (E, C)
        return batch


class OnEdges(nn.Module):
    """Give an encoder the edges of a batch as if they were nodes.

    Args:
        encoder: module that reads ``x`` and statistics (rows of nodes), and replaces ``x``.
        statistics: name of what it reads beside ``x``; the batch has it as ``edge_<statistics>``, as torch_geometric
            goes by names where a graph has as many nodes as edges.
        dim_norm: columns of the edge features before it, which then pass a BatchNorm first; None: no norm.

    Shapes: batch.edge_attr (E, C'), batch.edge_<statistics> (E, K) -> batch.edge_attr (E, C).

    Raises:
        ValueError: no edge features, when called; and what the encoder raises.
    """

    def __init__(self, encoder: nn.Module, statistics: str, dim_norm: int | None = None) -> None:
        super().__init__()
        self.encoder, self.statistics = encoder, statistics
        self.norm = nn.Identity() if dim_norm is None else BatchNorm(dim_norm, allow_single_element=True)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.edge_attr``."""
        edges = Data(x=self.norm(edge_features(batch, self.statistics)))
        if f"edge_{self.statistics}" in batch:
            edges[self.statistics] = batch[f"edge_{self.statistics}"]
        batch.edge_attr = self.encoder(edges).x
        return batch
