"""Eigensolver: the smallest eigenpairs of sparse symmetric matrices, many small ones at once or one large one.

`smallest_eigenpairs` selects by size, component by component: dense matrices up to 75 rows; up to 1,500 rows a compiled
shift-invert Lanczos solver (``native/spectrum.c``); above, that of SciPy, and block iterations where it fails.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy
import torch
from threadpoolctl import ThreadpoolController

from graphgps_kmip.ops.native import load, pointer, unavailable_reason

LOG = logging.getLogger(__name__)
DENSE_AT_MOST = 5000  # rows for which a dense decomposition may replace Lanczos: 200 MB, ten seconds
# A factorisation is tried where the entries inside the band stay below this many (400 MB), or grow as slowly as on
# planar graphs (streets: 0.2 n^1.5, triangulations: 3 n^1.5); on expanders and social graphs it would fill the memory.
BAND_ENTRIES, PLANAR_BAND = 3e7, 5.0
MAX_BLOCK_STEPS = 500
TOLERANCE = 1e-12  # relative, of Lanczos; machine precision takes a third more steps


def dense_eigenpairs(matrix: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest eigenvalues, ascending, and orthonormal eigenvectors: (N, N) -> (count,), (N, count)."""
    return scipy.linalg.eigh(matrix, subset_by_index=[0, count - 1], check_finite=False)


def sparse_eigenpairs(matrix: scipy.sparse.csc_array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ``count`` smallest eigenvalues, ascending, and orthonormal eigenvectors of a large sparse matrix.

    A Lanczos run can miss copies of a repeated eigenvalue, so those below the last one are counted (Sylvester's law of
    inertia), and a wider run follows where one is missing. Where that fails too: a dense decomposition up to 5,000
    rows, above it block inverse iteration (LOBPCG where a factorisation would fill the memory). All of this is logged.

    The matrix is positive semi-definite, float64, with all of its diagonal stored; ``count`` is below N / 4.

    Shapes: (N, N) -> (count,), (N, count).
    """
    factor = _factorise(matrix, _shift(matrix.shape[0])) if _stays_sparse(matrix) else None
    width = max(2 * count + 1, 25)
    for num_vectors in (width, 4 * width):
        num_vectors = min(num_vectors, matrix.shape[0] - 1)
        try:
            values, vectors = _lanczos(matrix, factor, count, num_vectors)
        except (scipy.sparse.linalg.ArpackNoConvergence, scipy.sparse.linalg.ArpackError) as error:
            reason = str(error).splitlines()[0]
        else:
            missing = 0 if factor is None else _count_missing(matrix, values)
            if missing <= 0:
                return values, vectors
            reason = f"{missing} eigenvalues were missed"
        LOG.warning("Lanczos with %d vectors on %d nodes: %s; trying again", num_vectors, matrix.shape[0], reason)
    if matrix.shape[0] <= DENSE_AT_MOST:
        return dense_eigenpairs(matrix.toarray(), count)
    values, vectors = _lobpcg(matrix, count) if factor is None else _inverse_iteration(matrix, factor, count)
    residual = _residual(matrix, values, vectors)
    LOG.warning("Block iteration on %d nodes: residuals up to %.1e", matrix.shape[0], residual)
    return values, vectors


def _shift(num_rows: int) -> float:
    """Return a point just below the spectrum: the nearer, the fewer solves; the gaps shrink like 1 / N^2."""
    return -min(1e-6, max(1e-9, 1e3 / num_rows**2))


def _stays_sparse(matrix: scipy.sparse.csc_array) -> bool:
    """Return whether the triangles of a factorisation are expected to fit, from the band after Cuthill-McKee."""
    if matrix.shape[0] ** 2 <= 2 * BAND_ENTRIES:
        return True
    order = scipy.sparse.csgraph.reverse_cuthill_mckee(matrix.tocsr(), symmetric_mode=True)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    entries = matrix.tocoo()
    width = np.zeros(len(order), dtype=np.int64)
    np.maximum.at(width, place[entries.row], place[entries.row] - place[entries.col])
    return width.sum() <= max(BAND_ENTRIES, PLANAR_BAND * len(order) ** 1.5)


def _factorise(matrix: scipy.sparse.csc_array, shift: float) -> scipy.sparse.linalg.SuperLU:
    shifted = matrix.copy()
    column = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    shifted.data[matrix.indices == column] -= shift  # a sum of two matrices would take half as long as the factors
    # The minimum degree order of A + A' halves the fill of the default, which is made for unsymmetric matrices.
    order = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}
    return scipy.sparse.linalg.splu(shifted, **order)


def _lanczos(
    matrix: scipy.sparse.csc_array, factor: scipy.sparse.linalg.SuperLU | None, count: int, num_vectors: int
) -> tuple[np.ndarray, np.ndarray]:
    start = np.random.default_rng(0).standard_normal(matrix.shape[0])  # fixed: the same graph gives the same vectors
    how = {"which": "SA", "ncv": 2 * num_vectors, "maxiter": 1000}
    if factor is not None:
        inverse = scipy.sparse.linalg.LinearOperator(matrix.shape, matvec=factor.solve, dtype=np.float64)
        how = {"sigma": _shift(len(start)), "OPinv": inverse, "ncv": num_vectors}
    with _blas().limit(limits=1, user_api="blas"):  # its vectors are too short for threads: twice the time with two
        values, vectors = scipy.sparse.linalg.eigsh(matrix, k=count, v0=start, tol=TOLERANCE, **how)
    order = values.argsort()
    return values[order], vectors[:, order]


@functools.cache
def _blas() -> ThreadpoolController:
    scipy.linalg.lapack  # noqa: B018 (loaded now, or its BLAS would not be among those that are limited)
    return ThreadpoolController()


def _count_missing(matrix: scipy.sparse.csc_array, values: np.ndarray) -> int:
    """Return how many eigenvalues below the last of ``values`` are not among them, by the negative pivots."""
    bound = float(values[-1] - 1e-12 - 1e-7 * abs(values[-1]))  # copies of the last one may be missing
    return int((_factorise(matrix, bound).U.diagonal() < 0).sum() - (values < bound).sum())


def _inverse_iteration(
    matrix: scipy.sparse.csc_array, factor: scipy.sparse.linalg.SuperLU, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Iterate on a block of vectors: slower than Lanczos, but it finds as many copies as the block has columns."""
    block = np.random.default_rng(0).standard_normal((matrix.shape[0], 2 * count + 10))
    for _ in range(MAX_BLOCK_STEPS):
        block = np.linalg.qr(factor.solve(block))[0]
        values, rotation = np.linalg.eigh(block.T @ (matrix @ block))
        block = block @ rotation
        values, vectors = values[:count], block[:, :count]
        if _residual(matrix, values, vectors) < 1e-13 * matrix.diagonal().max():
            break
    return values, vectors


def _lobpcg(matrix: scipy.sparse.csc_array, count: int) -> tuple[np.ndarray, np.ndarray]:
    diagonal = matrix.diagonal()[:, None]
    inverse = scipy.sparse.linalg.LinearOperator(
        matrix.shape, matvec=lambda x: x.reshape(-1, 1) / diagonal, matmat=lambda x: x / diagonal
    )
    start = np.random.default_rng(0).standard_normal((matrix.shape[0], count + 5))  # 5 more: the last converge slowest
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the caller says how far it came
        values, vectors = scipy.sparse.linalg.lobpcg(matrix, start, M=inverse, largest=False, tol=1e-9, maxiter=2000)
    order = values.argsort()[:count]
    return values[order], vectors[:, order]


def _residual(matrix: scipy.sparse.csc_array, values: np.ndarray, vectors: np.ndarray) -> float:
    return float(np.abs(matrix @ vectors - vectors * values).max())


FLAGS = ("-fassociative-math", "-fno-signed-zeros")  # sums in vectors
# Below the eigenvalue 0, times 1 / N^2: where the gap after it may begin (a path: 5 / N^2), so that it costs no steps.
SHIFT = -1.0
SOLVED = 0
FAILURES = {  # 1 and 2 are none: several components, or a wide envelope, other solvers' work
    3: "Lanczos did not converge",
    4: "eigenvalues were missed",
    5: "pivots grew too large to count eigenvalues",
    6: "residuals above 1e-9",
}


class Blocks(NamedTuple):
    """Sparse symmetric matrices, all with their diagonal: CSR, columns counted in each; ptr: where each begins."""

    ptr: np.ndarray
    indptr: np.ndarray
    column: np.ndarray
    value: np.ndarray

    def matrix(self, number: int) -> scipy.sparse.csr_array:
        """Return one of the matrices."""
        indptr = self.indptr[self.ptr[number] : self.ptr[number + 1] + 1]
        entries, shape = slice(indptr[0], indptr[-1]), (len(indptr) - 1,) * 2
        return scipy.sparse.csr_array((self.value[entries], self.column[entries], indptr - indptr[0]), shape=shape)


def envelope_eigenpairs(blocks: Blocks, numbers: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ``count`` smallest eigenvalues of some matrices, ascending, and orthonormal eigenvectors.

    Residuals are below 1e-9 times the largest entry, and no eigenvalue below the last one is left out. The matrices
    (``numbers`` of them) are positive semi-definite, of more than ``count`` rows each.

    Shapes: returns (M, count), (N, count) with the rows of all blocks, and a status (M,): `SOLVED`, 1, 2 or a key of
        `FAILURES`; the rows of matrices that are not solved are undefined.
    """
    arrays = (blocks.ptr[numbers], np.diff(blocks.ptr)[numbers], blocks.indptr, blocks.column)
    begin, size, indptr, column = (torch.from_numpy(np.ascontiguousarray(array, np.int64)) for array in arrays)
    value = torch.from_numpy(np.ascontiguousarray(blocks.value, np.float64))
    values = torch.empty(len(numbers), count, dtype=torch.float64)
    vectors = torch.empty(int(blocks.ptr[-1]), count, dtype=torch.float64)
    status = torch.empty(len(numbers), dtype=torch.int64)
    failed = load("spectrum", *FLAGS).smallest_eigenpairs(
        ctypes.c_int64(len(numbers)),
        *map(pointer, (begin, size, indptr, column, value)),
        *map(ctypes.c_int64, (count, 4 * count + 100)),
        ctypes.c_double(SHIFT),
        *map(pointer, (values, vectors, status)),
    )
    if failed:
        raise MemoryError(f"the eigenpairs of a matrix of {size.max()} rows need more memory than there is")
    return values.numpy(), vectors.numpy(), status.numpy()


# Measured on trees, triangulations and random regular graphs, 4 and 11 eigenpairs.
STACK_NODES = 75  # up to here a stack of dense matrices is fastest: 11 pairs of 50 rows in 0.14 ms, compiled 0.2 ms
ENVELOPE_NODES = 1500  # up to here the compiled solver: 400 rows, a tree 0.4 (sparse 1.5) ms, planar 1.1 (2.5) ms
SPARSE_NODES = 350  # from here, without it, the sparse solver is faster than the dense one
STACK_ENTRIES = 2**22  # of one stack of matrices: 32 MB

Pairs = tuple[np.ndarray, np.ndarray]


def smallest_eigenpairs(blocks: Blocks, max_pairs: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the smallest eigenvalues, ascending, and orthonormal eigenvectors of positive semi-definite matrices.

    Each component has an eigenvalue 0, or one row. Small matrices of one size are solved at once.

    Shapes: yields numbers of matrices (M,), values (M, k), vectors (M, N, k) with k = min(max_pairs, N).
    """
    sizes = np.diff(blocks.ptr)
    for size in np.unique(sizes[sizes <= STACK_NODES]):
        same = np.flatnonzero(sizes == size)
        step = STACK_ENTRIES // int(size) ** 2
        for chunk in np.split(same, range(step, len(same), step)):
            stack = np.zeros((len(chunk) * size, size))
            rows = (blocks.ptr[chunk][:, None] + np.arange(size)).reshape(-1)
            counts = np.diff(blocks.indptr)[rows]
            entries = np.arange(counts.sum()) + np.repeat(blocks.indptr[rows] - (counts.cumsum() - counts), counts)
            stack[np.repeat(np.arange(len(rows)), counts), blocks.column[entries]] = blocks.value[entries]
            values, vectors = torch.linalg.eigh(torch.from_numpy(stack.reshape(-1, size, size)))
            yield chunk, values[:, :max_pairs].numpy(), vectors[:, :, :max_pairs].numpy()
    for number, (values, vectors) in _solve_large(blocks, np.flatnonzero(sizes > STACK_NODES), max_pairs):
        yield np.array([number]), values[None], vectors[None]


def _solve_large(blocks: Blocks, numbers: np.ndarray, max_pairs: int) -> Iterator[tuple[int, Pairs]]:
    sizes = np.diff(blocks.ptr)[numbers]
    suits = (sizes <= ENVELOPE_NODES) & (4 * max_pairs < sizes)
    suits &= suits.any() and unavailable_reason("spectrum", *FLAGS) is None
    compiled, left = numbers[suits], numbers[~suits].tolist()
    if len(compiled):
        values, vectors, status = envelope_eigenpairs(blocks, compiled, max_pairs)
        for row, (number, code) in enumerate(zip(compiled.tolist(), status.tolist(), strict=True)):
            first, end = blocks.ptr[number : number + 2]
            if code == SOLVED:
                yield number, (values[row], vectors[first:end])
                continue
            left.append(number)
            if code in FAILURES:
                LOG.warning("compiled Lanczos on %d nodes: %s; another solver follows", end - first, FAILURES[code])
    for number in left:
        yield number, _solve_components(blocks.matrix(number), min(max_pairs, np.diff(blocks.ptr)[number]))


def _solve_components(matrix: scipy.sparse.csr_array, count: int) -> Pairs:
    """Return the smallest eigenpairs component by component: each has one eigenvalue 0, which Lanczos finds at once."""
    num, label = scipy.sparse.csgraph.connected_components(matrix, directed=False)
    if num == 1:
        sparse = len(label) >= SPARSE_NODES and 4 * count < len(label)
        return sparse_eigenpairs(matrix.tocsc(), count) if sparse else dense_eigenpairs(matrix.toarray(), count)
    size = np.bincount(label)
    # Of many components the trivial eigenvalues are enough: 0, or 1 for isolated nodes where the norm gives them that.
    trivial = np.where(size == 1, matrix.diagonal()[np.unique(label, return_index=True)[1]], 0.0)
    order, start = label.argsort(kind="stable"), size.cumsum() - size
    pairs = []
    for component in trivial.argsort(kind="stable")[:count]:
        nodes = order[start[component] : start[component] + size[component]]
        part = matrix[nodes][:, nodes]
        part = Blocks(np.array([0, len(nodes)]), part.indptr, part.indices, part.data)
        ((_, (values, vectors)),) = _solve_large(part, np.array([0]), min(count, len(nodes)))
        pairs += [(value, nodes, vectors[:, column]) for column, value in enumerate(values)]
    pairs = sorted(pairs, key=lambda pair: pair[0])[:count]
    vectors = np.zeros((len(label), count))
    for column, (_, nodes, vector) in enumerate(pairs):
        vectors[nodes, column] = vector
    return np.array([value for value, _, _ in pairs]), vectors
