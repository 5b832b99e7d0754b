"""Eigenvalues and eigenvectors of graph Laplacians (Dwivedi et al. 2020), of many graphs at once or of a large one.

Definitions are those of the public GraphGPS code, with one exception: its "rw" hands a matrix that is not symmetric to
a solver for symmetric ones and so depends on the order of the nodes; ours are the eigenvectors of I - D^-1 A.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi

import numpy as np
import torch
from torch import Tensor

from graphgps_kmip.encoding.eigensolver import smallest_eigenpairs
from graphgps_kmip.encoding.envelope import Blocks
from graphgps_kmip.errors import InputError

EPS = 1e-12
LAPLACIAN_NORMS = ("none", "sym", "rw")


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
    blocks, degree = _laplacians([edges for edges, _ in graphs], sizes, laplacian_norm)
    found: list[tuple[Tensor, Tensor] | None] = [None] * len(graphs)
    for chunk, values, vectors in smallest_eigenpairs(blocks, max_freqs):
        if laplacian_norm == "rw":  # similar to "sym": the same eigenvalues, eigenvectors times D^-1/2
            scale = [degree[slice(*blocks.ptr[graph : graph + 2])].clip(1) ** -0.5 for graph in chunk]
            vectors = vectors * np.stack(scale)[..., None]
        found_here = _scaled(torch.from_numpy(values), torch.from_numpy(vectors), max_freqs, eigvec_norm)
        for graph, one in zip(chunk, zip(*found_here, strict=True), strict=True):
            found[graph] = one
    return found


def _check(graphs: Sequence[tuple[Tensor, int]], max_freqs: int, laplacian_norm: str, eigvec_norm: str) -> None:
    if max_freqs < 1:
        raise InputError(f"eigen.max_freqs must be at least 1, got {max_freqs}")
    if laplacian_norm not in LAPLACIAN_NORMS:
        raise InputError(f"eigen.laplacian_norm must be one of {', '.join(LAPLACIAN_NORMS)}, got {laplacian_norm!r}")
    if eigvec_norm not in EIGVEC_NORMS:
        raise InputError(f"eigen.eigvec_norm must be one of {', '.join(EIGVEC_NORMS)}, got {eigvec_norm!r}")
    for edge_index, size in graphs:
        if size < 1:
            raise InputError("a graph without nodes has no Laplacian: drop it from the data set")
        if edge_index.numel() and (int(edge_index.min()) < 0 or int(edge_index.max()) >= size):
            raise InputError(f"edge_index names node {int(edge_index.max())}, but the graph has {size} nodes")


def _laplacians(edges: list[Tensor], sizes: np.ndarray, norm: str) -> tuple[Blocks, np.ndarray]:
    """Return the Laplacians of graphs, those of "sym" for "rw", and the degrees of all nodes."""
    ptr = np.append(0, sizes.cumsum())
    total, graph = ptr[-1], np.repeat(np.arange(len(edges)), [index.size(1) for index in edges])
    source, target = torch.cat([index.cpu() for index in edges], dim=1).numpy() + ptr[graph]
    diagonal = np.arange(total) * (total + 1)  # once, so that self-loops are no more than it
    key = np.concatenate([source * total + target, target * total + source, diagonal])
    key.sort()  # np.unique hashes: ten times slower
    row, col = np.divmod(key[np.append(True, key[1:] != key[:-1])], total)
    indptr = np.append(0, np.bincount(row, minlength=total).cumsum())
    degree = np.diff(indptr) - 1.0
    scale = np.ones(total) if norm == "none" else degree.clip(1) ** -0.5
    value = -scale[row] * scale[col]
    value[row == col] = degree if norm == "none" else 1
    return Blocks(ptr, indptr, col - np.repeat(ptr[:-1], sizes)[row], value), degree


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
