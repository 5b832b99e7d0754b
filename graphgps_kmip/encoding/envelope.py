"""The smallest eigenpairs of many middle-sized sparse matrices in one call of a compiled solver.

Matrices of some hundred rows are the least comfortable ones: a dense decomposition costs N^3, and a sparse solver that
is called for each spends its time in calls. In an order that keeps neighbours close the factors of trees, molecules,
meshes and superpixel graphs stay in a narrow envelope, and all of the solver is 450 lines of C (``native/spectrum.c``):
shift-invert Lanczos with full reorthogonalisation, and an exact count of the eigenvalues that it missed.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array

from graphgps_kmip.native import load, pointer, unavailable_reason

FLAGS = ("-fassociative-math", "-fno-signed-zeros")  # sums in vectors
# Below the eigenvalue 0, times 1 / N^2: where the gap behind it may begin (a path: 5 / N^2), so that it costs no steps.
SHIFT = -1.0
FOUND = 0
ROUTINE = (1, 2)  # several components, or a wide envelope: other solvers' work, as expected
FAILURES = {
    3: "Lanczos did not converge",
    4: "eigenvalues were missed",
    5: "pivots grew too large to count eigenvalues",
    6: "residuals above 1e-9",
}


class Blocks(NamedTuple):
    """Sparse symmetric matrices one after the other, all with their diagonal: CSR, columns counted in each matrix.

    Shapes: ptr (G + 1,), where the rows of each begin, indptr (N + 1,), column (E,), value (E,).
    """

    ptr: np.ndarray
    indptr: np.ndarray
    column: np.ndarray
    value: np.ndarray

    @classmethod
    def of(cls, matrix: csr_array) -> Blocks:
        """Return a single matrix as blocks."""
        return cls(np.array([0, matrix.shape[0]]), matrix.indptr, matrix.indices, matrix.data)

    def matrix(self, number: int) -> csr_array:
        """Return one of the matrices."""
        indptr, own = self._place(number)
        return csr_array((self.value[own], self.column[own], indptr), shape=(len(indptr) - 1,) * 2)

    def dense(self, number: int) -> np.ndarray:
        """Return one of the matrices with all of its zeros."""
        indptr, own = self._place(number)
        size = len(indptr) - 1
        filled = np.zeros((size, size))
        filled[np.repeat(np.arange(size), np.diff(indptr)), self.column[own]] = self.value[own]
        return filled

    def _place(self, number: int) -> tuple[np.ndarray, slice]:
        """Say where the rows of a matrix begin among its entries, and which entries are its own."""
        indptr = self.indptr[self.ptr[number] : self.ptr[number + 1] + 1]
        return indptr - indptr[0], slice(indptr[0], indptr[-1])


def can_run() -> bool:
    """Say whether the solver can be compiled on this machine."""
    return unavailable_reason("spectrum", *FLAGS) is None


def envelope_eigenpairs(blocks: Blocks, chosen: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ``count`` smallest eigenvalues of each chosen matrix, ascending, and orthonormal eigenvectors.

    Residuals are below 1e-9 times the largest entry, and no eigenvalue below the last one is left out, however often it
    repeats. A matrix has the same result in any company.

    Args:
        blocks: positive semi-definite.
        chosen: numbers of matrices; each of more than ``count`` rows.
        count: eigenpairs, at least 1.

    Shapes: returns (M, count), (N, count) with the rows of all blocks, those of other matrices undefined, and a status
        (M,): `FOUND`, one of `ROUTINE` or a key of `FAILURES`; other rows than those that are found are undefined.

    Cost: for an envelope of W entries a row, about N W^2 / 2 multiplications for a factorisation, two of them, and
    4 N W + 2 N count for each of about 4 count steps.

    Raises:
        MemoryError: N^2 / 4 numbers and the Lanczos vectors of the largest matrix do not fit.
    """
    given = (blocks.ptr[chosen], np.diff(blocks.ptr)[chosen], blocks.indptr, blocks.column)
    begin, size, indptr, column = (torch.from_numpy(np.ascontiguousarray(array, np.int64)) for array in given)
    value = torch.from_numpy(np.ascontiguousarray(blocks.value, np.float64))
    values = torch.empty(len(chosen), count, dtype=torch.float64)
    vectors = torch.empty(int(blocks.ptr[-1]), count, dtype=torch.float64)
    status = torch.empty(len(chosen), dtype=torch.int64)
    failed = load("spectrum", *FLAGS).smallest_eigenpairs(
        ctypes.c_int64(len(chosen)),
        *map(pointer, (begin, size, indptr, column, value)),
        *map(ctypes.c_int64, (count, 4 * count + 100)),
        ctypes.c_double(SHIFT),
        *map(pointer, (values, vectors, status)),
    )
    if failed:
        raise MemoryError(f"the eigenpairs of a matrix of {size.max()} rows need more memory than there is")
    return values.numpy(), vectors.numpy(), status.numpy()
