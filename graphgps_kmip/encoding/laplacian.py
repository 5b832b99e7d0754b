"""Eigenvalues and eigenvectors of graph Laplacians (Dwivedi et al. 2020), of many graphs at once or of a large one.

Definitions are those of the public GraphGPS code, with one exception: its "rw" hands a matrix that is not symmetric to
a solver for symmetric ones and so depends on the order of the nodes; ours are the eigenvectors of I - D^-1 A.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi

import numpy as np
import torch
from scipy.sparse import csc_array, csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from graphgps_kmip.encoding.spectrum import dense_eigenpairs, sparse_eigenpairs

EPS = 1e-12
STACK_NODES = 100  # up to here a stack of all eigenvectors is faster than the smallest ones graph by graph
SPARSE_NODES = 350  # from here the sparse solver is faster than the dense one: 6 against 10 ms at 479 nodes
STACK_ENTRIES = 2**22  # of one stack of Laplacians: 32 MB
LAPLACIAN_NORMS = ("none", "sym", "rw")

Pairs = tuple[np.ndarray, np.ndarray]


def laplacian_eigenpairs(
    edge_index: Tensor, num_nodes: int, max_freqs: int = 10, laplacian_norm: str = "sym", eigvec_norm: str = "L2"
) -> tuple[Tensor, Tensor]:
    """Return the ``max_freqs`` smallest eigenvalues of a graph's Laplacian and their eigenvectors, trivial ones too.

    Edges count in both directions, once, and self-loops not at all. Eigenvectors are determined up to their sign, and
    where an eigenvalue repeats up to a rotation. No gradients.

    Args:
        edge_index: edges, int64.
        num_nodes: N, at least 1; isolated nodes count (eigenvalue 0 with "none", 1 with "sym" and "rw").
        max_freqs: K, at least 1; where N < K, the last columns are NaN.
        laplacian_norm: "none" D - A, "sym" I - D^-1/2 A D^-1/2, "rw" I - D^-1 A.
        eigvec_norm: key of `EIGVEC_NORMS`: how eigenvectors are scaled.

    Shapes: (2, E) -> (K,), (N, K), float64, on the CPU.

    Raises:
        ValueError: an unknown norm, max_freqs or num_nodes < 1, or an edge to a node that does not exist.
    """
    return laplacian_eigenpairs_of([(edge_index, num_nodes)], max_freqs, laplacian_norm, eigvec_norm)[0]


def laplacian_eigenpairs_of(
    graphs: Sequence[tuple[Tensor, int]], max_freqs: int = 10, laplacian_norm: str = "sym", eigvec_norm: str = "L2"
) -> list[tuple[Tensor, Tensor]]:
    """Return `laplacian_eigenpairs` of every graph (edge_index, num_nodes), small graphs of one size at once."""
    _check(graphs, max_freqs, laplacian_norm, eigvec_norm)
    sizes = np.array([size for _, size in graphs], dtype=np.int64)
    row, col, value, degree, first = _laplacians([edges for edges, _ in graphs], sizes, laplacian_norm)
    node = np.append(0, sizes.cumsum())

    def entries(graph: int) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        own = slice(first[graph], first[graph + 1])
        return value[own], (row[own] - node[graph], col[own] - node[graph])

    found: list[tuple[Tensor, Tensor] | None] = [None] * len(graphs)
    for size in np.unique(sizes):
        same = np.flatnonzero(sizes == size)
        step = max(1, STACK_ENTRIES // int(size) ** 2) if size <= STACK_NODES else 1
        for chunk in np.split(same, range(step, len(same), step)):
            values, vectors = _eigenpairs([entries(graph) for graph in chunk], int(size), max_freqs)
            if laplacian_norm == "rw":  # similar to "sym": the same eigenvalues, eigenvectors times D^-1/2
                scale = [degree[node[graph] : node[graph + 1]].clip(1) ** -0.5 for graph in chunk]
                vectors = vectors * np.stack(scale)[..., None]
            found_here = _scaled(torch.from_numpy(values), torch.from_numpy(vectors), max_freqs, eigvec_norm)
            for graph, one in zip(chunk, zip(*found_here, strict=True), strict=True):
                found[graph] = one
    return found


def _check(graphs: Sequence[tuple[Tensor, int]], max_freqs: int, laplacian_norm: str, eigvec_norm: str) -> None:
    if max_freqs < 1:
        raise ValueError(f"eigen.max_freqs must be at least 1, got {max_freqs}")
    if laplacian_norm not in LAPLACIAN_NORMS:
        raise ValueError(f"eigen.laplacian_norm must be one of {', '.join(LAPLACIAN_NORMS)}, got {laplacian_norm!r}")
    if eigvec_norm not in EIGVEC_NORMS:
        raise ValueError(f"eigen.eigvec_norm must be one of {', '.join(EIGVEC_NORMS)}, got {eigvec_norm!r}")
    for edge_index, size in graphs:
        if size < 1:
            raise ValueError("a graph without nodes has no Laplacian: drop it from the data set")
        if edge_index.numel() and (int(edge_index.min()) < 0 or int(edge_index.max()) >= size):
            raise ValueError(f"edge_index names node {int(edge_index.max())}, but the graph has {size} nodes")


def _laplacians(edges: list[Tensor], sizes: np.ndarray, norm: str) -> tuple[np.ndarray, ...]:
    """Return the non-zeros (row, col, value) of all Laplacians as one, the degrees, and where each graph's begin.

    "rw" gives those of "sym".
    """
    total, offset = int(sizes.sum()), sizes.cumsum() - sizes
    lengths = [index.size(1) for index in edges]
    joined = torch.cat([index.cpu() for index in edges], dim=1).numpy() + np.repeat(offset, lengths)
    source, target = joined[:, joined[0] != joined[1]]
    key = np.concatenate([source * total + target, target * total + source])
    key.sort()  # np.unique hashes: ten times slower
    source, target = np.divmod(key[np.diff(key, prepend=-1) > 0], total)
    degree = np.bincount(source, minlength=total).astype(np.float64)
    weight = np.ones(len(source)) if norm == "none" else (degree[source] * degree[target]) ** -0.5
    diagonal = np.arange(total)
    row, col = np.concatenate([source, diagonal]), np.concatenate([target, diagonal])
    value = np.concatenate([-weight, degree if norm == "none" else np.ones(total)])
    order = row.argsort(kind="stable")
    first = row[order].searchsorted(np.append(offset, total))
    return row[order], col[order], value[order], degree, first


def _eigenpairs(graphs: list[tuple], size: int, max_freqs: int) -> Pairs:
    """Return the eigenpairs of Laplacians (value, (row, col)) of one size.

    Shapes: G graphs -> (G, k), (G, size, k) with k = min(max_freqs, size).
    """
    count = min(max_freqs, size)
    if size > STACK_NODES:
        solve = _large if size >= SPARSE_NODES and 4 * count < size else _dense
        pairs = [solve(csr_array(graph, shape=(size, size)), count) for graph in graphs]
        return np.stack([values for values, _ in pairs]), np.stack([vectors for _, vectors in pairs])
    stack = np.zeros((len(graphs), size, size))
    for matrix, (value, place) in zip(stack, graphs, strict=True):
        matrix[place] = value
    values, vectors = torch.linalg.eigh(torch.from_numpy(stack))
    return values[:, :count].numpy(), vectors[:, :, :count].numpy()


def _dense(matrix: csr_array, count: int) -> Pairs:
    return dense_eigenpairs(matrix.toarray(), count)


def _large(matrix: csr_array, count: int) -> Pairs:
    """Return the smallest eigenpairs component by component: each has one eigenvalue 0, which Lanczos finds at once."""
    num, label = connected_components(matrix, directed=False)
    if num == 1:
        return sparse_eigenpairs(csc_array(matrix), count)
    size = np.bincount(label)
    # Of many components the trivial eigenvalues are enough: 0, or 1 for isolated nodes where the norm gives them that.
    trivial = np.where(size == 1, matrix.diagonal()[np.unique(label, return_index=True)[1]], 0.0)
    chosen = trivial.argsort(kind="stable")[:count]
    order, start = label.argsort(kind="stable"), size.cumsum() - size
    found = []
    for component in chosen:
        nodes = order[start[component] : start[component] + size[component]]
        part, wanted = matrix[nodes][:, nodes], min(count, len(nodes))
        solve = sparse_eigenpairs if len(nodes) >= SPARSE_NODES and 4 * wanted < len(nodes) else None
        values, vectors = solve(csc_array(part), wanted) if solve else _dense(part, wanted)
        found += [(value, nodes, vectors[:, column]) for column, value in enumerate(values)]
    found = sorted(found, key=lambda pair: pair[0])[:count]
    vectors = np.zeros((len(label), count))
    for column, (_, nodes, vector) in enumerate(found):
        vectors[nodes, column] = vector
    return np.array([value for value, _, _ in found]), vectors


def _scaled(values: Tensor, vectors: Tensor, max_freqs: int, norm: str) -> tuple[Tensor, Tensor]:
    """Clamp eigenvalues at 0, scale eigenvectors, pad with NaN.

    Shapes: (G, k), (G, N, k) -> (G, max_freqs), (G, N, max_freqs).
    """
    values = values.clamp_min(0)
    root = torch.where(values < EPS, 1.0, values.sqrt())[:, None]  # (G, 1, k)
    padding = (0, max_freqs - values.size(1))
    pad = torch.nn.functional.pad
    return pad(values, padding, value=torch.nan), pad(EIGVEC_NORMS[norm](vectors, root), padding, value=torch.nan)


def _over(vectors: Tensor, size: Tensor) -> Tensor:
    return vectors / size.clamp_min(EPS)


def _largest(vectors: Tensor) -> Tensor:
    return vectors.abs().amax(dim=1, keepdim=True)


def _soft_largest(vectors: Tensor) -> Tensor:
    return (vectors.abs().softmax(dim=1) * vectors.abs()).sum(dim=1, keepdim=True)


# Of eigenvectors (G, N, k) and square roots of eigenvalues (G, 1, k), 1 for the eigenvalue 0.
EIGVEC_NORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "L1": lambda vectors, _: _over(vectors, vectors.abs().sum(dim=1, keepdim=True)),
    "L2": lambda vectors, _: _over(vectors, vectors.norm(dim=1, keepdim=True)),
    "abs-max": lambda vectors, _: _over(vectors, _largest(vectors)),
    "wavelength": lambda vectors, root: _over(vectors, _largest(vectors) * root * 2 / pi),
    "wavelength-asin": lambda vectors, root: _over(_over(vectors, _largest(vectors)).asin(), root),
    "wavelength-soft": lambda vectors, root: _over(vectors, _soft_largest(vectors) * root),
}
