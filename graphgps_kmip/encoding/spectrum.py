"""The smallest eigenpairs of large sparse matrices: shift-invert Lanczos, and what to do where it fails."""

from __future__ import annotations

import functools
import logging
import warnings

import numpy as np
from scipy.linalg import eigh
from scipy.sparse import csc_array
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, SuperLU, eigsh, lobpcg, splu
from threadpoolctl import ThreadpoolController

LOG = logging.getLogger(__name__)
DENSE_AT_MOST = 5000  # rows for which a dense decomposition may stand in: 200 MB, ten seconds
# A factorisation is tried where the entries inside the band stay below this many (400 MB), or grow as slowly as on
# planar graphs (roads: 0.2 n^1.5, triangulations: 3 n^1.5); on expanders and social graphs it would fill the memory.
BAND_ENTRIES, PLANAR_BAND = 3e7, 5.0
MAX_BLOCK_STEPS = 500
TOLERANCE = 1e-12  # relative, of Lanczos; machine precision takes a third more steps


def dense_eigenpairs(matrix: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ``count`` smallest eigenvalues, ascending, and orthonormal eigenvectors of a symmetric matrix.

    Shapes: (N, N) -> (count,), (N, count).
    """
    return eigh(matrix, subset_by_index=[0, count - 1], check_finite=False)


def sparse_eigenpairs(matrix: csc_array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ``count`` smallest eigenvalues, ascending, and orthonormal eigenvectors of a large sparse matrix.

    A Lanczos run can miss copies of a repeated eigenvalue, so the eigenvalues below the last one are counted (the
    signs in a factorisation, Sylvester's law of inertia) and a wider run follows where one is missing. Where that fails
    too: a dense decomposition up to 5,000 rows, above it block inverse iteration (LOBPCG where a factorisation would
    fill the memory; there nothing is counted). Every such step is logged.

    Args:
        matrix: symmetric, positive semi-definite, float64, with all of its diagonal stored; best of a connected graph.
        count: eigenpairs wanted, fewer than N / 4.

    Shapes: (N, N) -> (count,), (N, count).
    """
    factor = _factored(matrix, _shift(matrix.shape[0])) if _stays_sparse(matrix) else None
    width = max(2 * count + 1, 25)
    for num_vectors in (width, 4 * width):
        num_vectors = min(num_vectors, matrix.shape[0] - 1)
        try:
            values, vectors = _lanczos(matrix, factor, count, num_vectors)
        except (ArpackNoConvergence, ArpackError) as error:
            reason = str(error).splitlines()[0]
        else:
            missing = 0 if factor is None else _count_below(matrix, values) - _found_below(values)
            if missing <= 0:
                return values, vectors
            reason = f"{missing} eigenvalues were missed"
        LOG.warning("Lanczos with %d vectors on %d nodes: %s; trying again", num_vectors, matrix.shape[0], reason)
    if matrix.shape[0] <= DENSE_AT_MOST:
        return dense_eigenpairs(matrix.toarray(), count)
    values, vectors = _lobpcg(matrix, count) if factor is None else _inverse_iteration(matrix, factor, count)
    LOG.warning(
        "Block iteration on %d nodes: residuals up to %.1e", matrix.shape[0], _residual(matrix, values, vectors)
    )
    return values, vectors


def _shift(num_rows: int) -> float:
    """Return a point just below the spectrum: the matrix minus it is positive definite.

    The nearer to the spectrum compared with the gaps in it, the fewer solves: on a road graph of 100,000 nodes (gaps of
    3e-8) 63 with -1e-6, 590 with -1e-4, 26,000 with -1e-2. Gaps of roads shrink like 1 / N^2, so the distance does.
    """
    return -min(1e-6, max(1e-9, 1e3 / num_rows**2))


def _stays_sparse(matrix: csc_array) -> bool:
    """Say whether the triangles of a factorisation are expected to fit, from the band after Cuthill-McKee."""
    if matrix.shape[0] ** 2 <= 2 * BAND_ENTRIES:
        return True
    order = reverse_cuthill_mckee(matrix.tocsr(), symmetric_mode=True)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    entries = matrix.tocoo()
    width = np.zeros(len(order), dtype=np.int64)
    np.maximum.at(width, place[entries.row], place[entries.row] - place[entries.col])
    return width.sum() <= max(BAND_ENTRIES, PLANAR_BAND * len(order) ** 1.5)


def _factored(matrix: csc_array, shift: float) -> SuperLU:
    """Factorise matrix - shift I, pivots on the diagonal, in an order made for symmetric matrices."""
    shifted = matrix.copy()
    column = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    shifted.data[matrix.indices == column] -= shift  # a sum of two matrices would take half as long as the factors
    # The minimum degree order of A + A' halves the fill of the default, which is made for unsymmetric matrices.
    return splu(shifted, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})


def _lanczos(matrix: csc_array, factor: SuperLU | None, count: int, num_vectors: int) -> tuple[np.ndarray, np.ndarray]:
    start = np.random.default_rng(0).standard_normal(matrix.shape[0])  # fixed: the same graph gives the same vectors
    how = {"which": "SA", "ncv": 2 * num_vectors, "maxiter": 1000}
    if factor is not None:
        inverse = LinearOperator(matrix.shape, matvec=factor.solve, dtype=np.float64)
        how = {"sigma": _shift(len(start)), "OPinv": inverse, "ncv": num_vectors}
    with _blas().limit(limits=1, user_api="blas"):  # its vectors are too short for threads: twice the time with two
        values, vectors = eigsh(matrix, k=count, v0=start, tol=TOLERANCE, **how)
    order = values.argsort()
    return values[order], vectors[:, order]


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def _bound(values: np.ndarray) -> float:
    return float(values[-1] - 1e-12 - 1e-7 * abs(values[-1]))  # copies of the last one need not all be found


def _found_below(values: np.ndarray) -> int:
    return int((values < _bound(values)).sum())


def _count_below(matrix: csc_array, values: np.ndarray) -> int:
    """Return how many eigenvalues lie below the last of ``values``: as many as negative pivots of matrix - bound I."""
    return int((_factored(matrix, _bound(values)).U.diagonal() < 0).sum())


def _inverse_iteration(matrix: csc_array, factor: SuperLU, count: int) -> tuple[np.ndarray, np.ndarray]:
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


def _lobpcg(matrix: csc_array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Minimise the Rayleigh quotient of a block, preconditioned by the diagonal."""
    diagonal = matrix.diagonal()[:, None]
    inverse = LinearOperator(matrix.shape, matvec=lambda x: x.reshape(-1, 1) / diagonal, matmat=lambda x: x / diagonal)
    start = np.random.default_rng(0).standard_normal((matrix.shape[0], count + 5))  # 5 more: the last converge slowest
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the caller says how far it came
        values, vectors = lobpcg(matrix, start, M=inverse, largest=False, tol=1e-9, maxiter=2000)
    order = values.argsort()[:count]
    return values[order], vectors[:, order]


def _residual(matrix: csc_array, values: np.ndarray, vectors: np.ndarray) -> float:
    return float(np.abs(matrix @ vectors - vectors * values).max())
