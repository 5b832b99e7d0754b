"""Which solver finds the smallest eigenpairs of which matrix: dense, compiled or sparse, component by component."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import torch
from scipy.sparse import csc_array, csr_array
from scipy.sparse.csgraph import connected_components

from graphgps_kmip.encoding.envelope import FAILURES, FOUND, Blocks, can_run, envelope_eigenpairs
from graphgps_kmip.encoding.spectrum import dense_eigenpairs, sparse_eigenpairs

LOG = logging.getLogger(__name__)
# Measured on trees, triangulations and random regular graphs, 4 and 11 eigenpairs.
STACK_NODES = 75  # up to here a stack of dense matrices is fastest: 11 pairs of 50 rows in 0.14 ms, compiled 0.2 ms
ENVELOPE_NODES = 1500  # up to here the compiled solver: 400 rows, a tree 0.4 (sparse 1.5) ms, planar 1.1 (2.5) ms
SPARSE_NODES = 350  # from here, without it, the sparse solver is faster than the dense one
STACK_ENTRIES = 2**22  # of one stack of matrices: 32 MB

Pairs = tuple[np.ndarray, np.ndarray]


def smallest_eigenpairs(blocks: Blocks, most: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the smallest eigenvalues, ascending, and orthonormal eigenvectors of matrices, several of a size at once.

    Args:
        blocks: positive semi-definite matrices of one row at least, each component with an eigenvalue 0 or of one row.
        most: eigenpairs of each, all where a matrix has fewer.

    Shapes: yields numbers of matrices (M,), values (M, k), vectors (M, N, k) with k = min(most, N).
    """
    sizes = np.diff(blocks.ptr)
    for size in np.unique(sizes[sizes <= STACK_NODES]):
        same = np.flatnonzero(sizes == size)
        step = STACK_ENTRIES // int(size) ** 2
        for chunk in np.split(same, range(step, len(same), step)):
            stack = torch.from_numpy(np.stack([blocks.dense(number) for number in chunk]))
            values, vectors = torch.linalg.eigh(stack)
            yield chunk, values[:, :most].numpy(), vectors[:, :, :most].numpy()
    for number, (values, vectors) in _large(blocks, np.flatnonzero(sizes > STACK_NODES), most):
        yield np.array([number]), values[None], vectors[None]


def _large(blocks: Blocks, numbers: np.ndarray, most: int) -> Iterator[tuple[int, Pairs]]:
    """Yield number and eigenpairs of some matrices, those first that the compiled solver can do."""
    sizes = np.diff(blocks.ptr)[numbers]
    suits = (sizes <= ENVELOPE_NODES) & (4 * most < sizes)
    suits &= suits.any() and can_run()
    compiled, left = numbers[suits], numbers[~suits].tolist()
    if len(compiled):
        values, vectors, status = envelope_eigenpairs(blocks, compiled, most)
        for row, (number, how) in enumerate(zip(compiled.tolist(), status.tolist(), strict=True)):
            first, end = blocks.ptr[number : number + 2]
            if how == FOUND:
                yield number, (values[row], vectors[first:end])
                continue
            left.append(number)
            if how in FAILURES:
                LOG.warning("compiled Lanczos on %d nodes: %s; another solver follows", end - first, FAILURES[how])
    for number in left:
        yield number, _by_components(blocks.matrix(number), min(most, np.diff(blocks.ptr)[number]))


def _by_components(matrix: csr_array, count: int) -> Pairs:
    """Return the smallest eigenpairs component by component: each has one eigenvalue 0, which Lanczos finds at once."""
    num, label = connected_components(matrix, directed=False)
    if num == 1:
        sparse = len(label) >= SPARSE_NODES and 4 * count < len(label)
        return sparse_eigenpairs(csc_array(matrix), count) if sparse else dense_eigenpairs(matrix.toarray(), count)
    size = np.bincount(label)
    # Of many components the trivial eigenvalues are enough: 0, or 1 for isolated nodes where the norm gives them that.
    trivial = np.where(size == 1, matrix.diagonal()[np.unique(label, return_index=True)[1]], 0.0)
    chosen = trivial.argsort(kind="stable")[:count]
    order, start = label.argsort(kind="stable"), size.cumsum() - size
    found = []
    for component in chosen:
        nodes = order[start[component] : start[component] + size[component]]
        part = Blocks.of(matrix[nodes][:, nodes])
        ((_, (values, vectors)),) = _large(part, np.array([0]), min(count, len(nodes)))
        found += [(value, nodes, vectors[:, column]) for column, value in enumerate(values)]
    found = sorted(found, key=lambda pair: pair[0])[:count]
    vectors = np.zeros((len(label), count))
    for column, (_, nodes, vector) in enumerate(found):
        vectors[nodes, column] = vector
    return np.array([value for value, _, _ in found]), vectors
