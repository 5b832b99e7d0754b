"""Effective resistance encodings: ERN, an embedding of nodes, and ERE, of edges (Spielman and Srivastava 2008).

Edges are wires of 1 ohm: r_ij = (e_i - e_j)^T L^+ (e_i - e_j) = |B L^+ e_i - B L^+ e_j|^2 with the Laplacian L = B^T B,
B the incidence matrix. A random projection of the columns of B L^+ keeps distances (section 4).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import scipy
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.encoding.positional_encoding import EdgeEncoding, NodeEncoding, edge_array
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.ranges import Range, Registered
from graphgps_kmip.registry import register

Array = np.ndarray

DENSE = 1_000  # nodes: up to here a dense factorisation is fast and takes 8 MB at most
ENTRIES = 1 << 22  # of one block of right sides: 32 MB
Accuracy = Annotated[float, Range(0, 1e6, above=True)]


@register("encoding", "ERN")
class ERN(NodeEncoding):
    """Random embedding whose distances are effective resistances.

    Each graph has its own width, then columns of zeros up to ``er_dim``; "none" is the width of the largest graph.
    """

    model: Annotated[str, Registered("of the encoder")] = "none"
    accuracy: Accuracy = 0.1
    er_dim: Annotated[str, Registered("a number, or none")] = "none"
    seed: int = 0
    dim_er: int = 0
    FROM_CONFIG: ClassVar[Mapping[str, str]] = {"seed": "seed", "dim_er": "share.dim_er"}
    random: ClassVar[bool] = True

    @property
    def needs_data(self) -> bool:
        """Whether the width is that of the largest graph."""
        return self.er_dim == "none"

    def facts(self, graphs: Sequence[Data]) -> dict[str, int]:
        """Return the width that holds the embedding of every graph, those that validate and test included."""
        if not self.needs_data or not len(graphs):
            return {}
        return {"dim_er": max(embedding_width(graph.num_nodes, graph.num_edges, self.accuracy) for graph in graphs)}

    @property
    def num_columns(self) -> int:
        """Return the columns of the embedding; a `ConfigError` where ``er_dim`` is no number, or none without data."""
        columns = str(self.dim_er) if self.needs_data else str(self.er_dim)
        if not columns.isdecimal() or int(columns) < 1:
            expected = "a number, or none to take the width of the loaded data"
            raise ConfigError(f"{self.group}.er_dim: expected {expected}, got {self.er_dim!r}")
        return int(columns)

    def settings(self) -> dict[str, Any]:
        """Return accuracy, width and seed."""
        return {"accuracy": self.accuracy, "er_dim": self.num_columns, "seed": self.seed}

    @staticmethod
    def compute(graph: Data, accuracy: float, er_dim: int, seed: int) -> Tensor:
        """Return the `resistance_embedding`, which is random by seed and graph."""
        width = min(embedding_width(graph.num_nodes, graph.num_edges, accuracy), er_dim)
        rng = np.random.default_rng([seed, graph.graph_id])
        embedding = resistance_embedding(graph.edge_index, graph.num_nodes, width, rng)
        return torch.nn.functional.pad(embedding, (0, er_dim - width))


@register("encoding", "ERE", aliases=("ER",))
class ERE(EdgeEncoding):
    """Effective resistances of edges."""

    model: Annotated[str, Registered("of the encoder")] = "none"
    accuracy: Accuracy = 0.1

    @staticmethod
    def compute(graph: Data, accuracy: float) -> Tensor:
        """Return the `edge_resistances`."""
        return edge_resistances(graph.edge_index, graph.num_nodes, accuracy)[:, None]


def effective_resistances(edge_index: Tensor, num_nodes: int, pairs: Tensor) -> Tensor:
    r"""Return :math:`r_{ij} = (e_i - e_j)^T L^+ (e_i - e_j)` of each pair (i, j), exactly.

    It is infinite between connected components and 0 from a node to itself. Edges count in both directions, once, and
    self-loops not at all. Cost: one solve for each node of the pairs, above `DENSE` nodes with sparse factors.

    Shapes: edge_index (2, E), pairs (2, P) -> (P,), float64.
    """
    circuit = _Circuit(edge_index, num_nodes)
    first, second = edge_array(pairs, num_nodes, "pairs")
    nodes, column = np.unique(np.concatenate([first, second]), return_inverse=True)
    diagonal, between = np.zeros(len(nodes)), np.zeros(len(first))
    column_first, column_second = column[: len(first)], column[len(first) :]
    for part in _split_columns(len(nodes), num_nodes):
        columns = np.arange(part.stop - part.start)
        units = np.zeros((num_nodes, len(columns)))
        units[nodes[part], columns] = 1.0
        inverse = circuit.solve(units)
        diagonal[part] = inverse[nodes[part], columns]
        here = np.flatnonzero((column_first >= part.start) & (column_first < part.stop))
        between[here] = inverse[second[here], column_first[here] - part.start]
    resistances = diagonal[column_first] + diagonal[column_second] - 2 * between
    resistances[circuit.component[first] != circuit.component[second]] = np.inf
    return torch.from_numpy(np.where(first == second, 0.0, resistances).clip(min=0.0))


def edge_resistances(edge_index: Tensor, num_nodes: int, accuracy: float = 0.1, seed: int = 0) -> Tensor:
    r"""Return the effective resistance of each edge; exactly, except where a projection takes fewer solves.

    Graphs of up to :math:`8 \ln(E) / \epsilon^2` nodes (6,000 to 12,000 with the default) get exact values, larger ones
    sums over so many random rows: right to a factor of 1 +- epsilon (``accuracy``) with high probability. ``seed`` is
    that of the random signs.

    Shapes: edge_index (2, E) -> (E,), float64.
    """
    rows = _enough_rows(edge_index.size(1), accuracy)
    if num_nodes <= rows:
        return effective_resistances(edge_index, num_nodes, edge_index)
    first, second = edge_array(edge_index, num_nodes)
    resistances = np.zeros(len(first))
    for _, columns in _project(_Circuit(edge_index, num_nodes), rows, np.random.default_rng(seed)):
        resistances += np.square(columns[first] - columns[second]).sum(axis=1)
    return torch.from_numpy(resistances)


def resistance_embedding(edge_index: Tensor, num_nodes: int, rows: int, rng: np.random.Generator) -> Tensor:
    r"""Return the columns of :math:`Z = Q B L^+`, one for each node, Q random signs :math:`\pm 1 / \sqrt{rows}`.

    The expectation of :math:`|Z_i - Z_j|^2` is r_ij inside a connected component, over each of which the embedding has
    mean 0. Only distances have a meaning, right to a few times sqrt(2 / rows).

    Shapes: edge_index (2, E) -> (N, rows), float64.
    """
    circuit, embedding = _Circuit(edge_index, num_nodes), np.zeros((num_nodes, rows))
    component = circuit.component
    members = scipy.sparse.csr_array((np.ones(num_nodes), (component, np.arange(num_nodes))))
    sizes = np.bincount(component)[:, None]
    for part, columns in _project(circuit, rows, rng):
        embedding[:, part] = columns - ((members @ columns) / sizes)[component]
    return torch.from_numpy(embedding)


def embedding_width(num_nodes: int, num_edges: int, accuracy: float) -> int:
    r"""Return the rows of a graph's embedding, :math:`\min(\lceil N / 2 \rceil, \lceil 8 \ln(E) / \epsilon^2 \rceil)`.

    One at least; E directed edges, accuracy epsilon, as in the public code.
    """
    return max(1, min(math.ceil(num_nodes / 2), _enough_rows(num_edges, accuracy)))


def _enough_rows(num_edges: int, accuracy: float) -> int:
    return math.ceil(8 * math.log(max(num_edges, 1)) / accuracy**2)


class _Circuit:
    """The wires of a graph, with a further wire from the first node of each component to the earth.

    That makes L invertible, and changes neither resistances nor potentials, but for a constant in each component.
    """

    def __init__(self, edge_index: Tensor, num_nodes: int) -> None:
        ends = np.sort(edge_array(edge_index, num_nodes), axis=0)
        keys = np.unique(ends[0] * num_nodes + ends[1])
        row, column = np.divmod(keys, max(num_nodes, 1))
        row, column = row[row != column], column[row != column]  # of each wire, once
        wires, shape = np.arange(len(row)), (len(row), num_nodes)
        forth = scipy.sparse.csr_array((np.ones(len(wires)), (wires, row)), shape=shape)
        back = scipy.sparse.csr_array((np.ones(len(wires)), (wires, column)), shape=shape)
        self.incidence = forth - back  # B, (wires, N)
        laplacian = (self.incidence.T @ self.incidence).tocsr()
        self.component = np.empty(0, np.int64)
        if num_nodes:
            self.component = scipy.sparse.csgraph.connected_components(laplacian, directed=False)[1]
        earth = np.zeros(num_nodes)
        earth[np.unique(self.component, return_index=True)[1]] = 1.0
        matrix = (laplacian + scipy.sparse.diags_array(earth)).tocsc()
        if num_nodes <= DENSE:
            factor = torch.linalg.cholesky(torch.from_numpy(matrix.toarray()))  # SciPy's takes all cores
            self.solve = lambda right: torch.cholesky_solve(torch.from_numpy(right), factor).numpy()
        else:  # symmetric positive definite: pivots stay on the diagonal, and the order is that of minimum degree
            order = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}
            self.solve = scipy.sparse.linalg.splu(matrix, **order).solve


def _project(circuit: _Circuit, rows: int, rng: np.random.Generator) -> Iterator[tuple[slice, Array]]:
    """Yield blocks of columns of (Q B L^+)^T, each (N, some rows), up to a constant in each component."""
    wires, num_nodes = circuit.incidence.shape
    for part in _split_columns(rows, max(wires, num_nodes)):
        signs = rng.integers(0, 2, (wires, part.stop - part.start)) * 2.0 - 1
        yield part, circuit.solve(circuit.incidence.T @ signs) / math.sqrt(rows)


def _split_columns(count: int, height: int) -> Iterator[slice]:
    width = max(1, ENTRIES // max(height, 1))
    yield from (slice(start, min(start + width, count)) for start in range(0, count, width))
