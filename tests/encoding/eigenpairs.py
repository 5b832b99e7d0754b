"""What eigenpairs of Laplacians must be, by the definition: helpers of several tests."""

from __future__ import annotations

import networkx as nx
import torch
from torch import Tensor


def edges_of(graph: nx.Graph) -> Tensor:
    """Every edge in one direction only: the functions make graphs undirected."""
    return torch.tensor(list(graph.edges), dtype=torch.int64).reshape(-1, 2).T


def named(graph: nx.Graph) -> tuple[Tensor, int]:
    return edges_of(nx.convert_node_labels_to_integers(graph)), len(graph)


def matrix_of(edge_index: Tensor, num_nodes: int, norm: str) -> Tensor:
    """The definition, entry by entry."""
    adjacency = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    for i, j in edge_index.T.tolist():
        if i != j:
            adjacency[i, j] = adjacency[j, i] = 1
    degree = adjacency.sum(1)
    if norm == "none":
        return degree.diag() - adjacency
    inverse = torch.where(degree > 0, 1 / degree, 0)
    left, right = (inverse.sqrt(), inverse.sqrt()) if norm == "sym" else (inverse, torch.ones(num_nodes))
    return torch.eye(num_nodes, dtype=torch.float64) - left[:, None] * adjacency * right


def check_eigenpairs(matrix: Tensor, values: Tensor, vectors: Tensor, tolerance: float = 1e-9) -> None:
    """The smallest eigenvalues of a symmetric matrix, and orthonormal eigenvectors: nothing else is determined."""
    expected = torch.linalg.eigvalsh(matrix)[: len(values)].clamp_min(0)
    torch.testing.assert_close(values, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(matrix @ vectors, vectors * values, rtol=tolerance, atol=tolerance)
    identity = torch.eye(len(values), dtype=torch.float64)
    torch.testing.assert_close(vectors.T @ vectors, identity, rtol=tolerance, atol=tolerance)


def check_projectors(values: Tensor, found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    """Equal spaces for every eigenvalue, but for the last one, whose space may be cut."""
    for value in values.tolist():
        same = (values - value).abs() < 1e-7
        if same[-1] and len(values) < len(found):
            continue
        torch.testing.assert_close(
            found[:, same] @ found[:, same].T, expected[:, same] @ expected[:, same].T, rtol=tolerance, atol=tolerance
        )
