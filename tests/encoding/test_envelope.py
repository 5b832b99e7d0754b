"""The compiled eigensolver: equal to dense ones, complete, the same in any company, and what it leaves to others."""

from __future__ import annotations

import logging
from itertools import product

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from graphgps_kmip.encoding import eigensolver as envelope
from graphgps_kmip.encoding import eigensolver as solver
from graphgps_kmip.encoding.eigensolver import FOUND, Blocks, dense_eigenpairs, envelope_eigenpairs
from graphgps_kmip.encoding.laplacian import laplacian_eigenpairs, laplacian_eigenpairs_of
from graphgps_kmip.native.compile_kernels import compiler
from tests.encoding.eigenpairs import check_eigenpairs, check_projectors, matrix_of, named

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler")

SUITABLE = {
    "path": nx.path_graph(400),  # the smallest gaps for its size
    "cycle": nx.cycle_graph(150),  # every eigenvalue but one twice
    "tree of equal branches": nx.balanced_tree(3, 4),  # eigenvalues up to 27 times
    "grid": nx.grid_2d_graph(12, 12),
    "torus": nx.grid_2d_graph(10, 10, periodic=True),  # the second one four times
    "hypercube": nx.hypercube_graph(8),  # the second one eight times
    "ring of cliques": nx.ring_of_cliques(15, 6),
    "random tree": nx.random_labeled_tree(151, seed=1),
    "random regular graph": nx.random_regular_graph(3, 150, seed=1),
    "star": nx.star_graph(100),
}


def blocks_of(*matrices: np.ndarray) -> Blocks:
    rows = [Blocks.of(csr_array(matrix)) for matrix in matrices]
    ends = np.cumsum([0] + [len(one.value) for one in rows])
    indptr = np.concatenate([[0], *(one.indptr[1:] + end for one, end in zip(rows, ends, strict=False))])
    ptr = np.cumsum([0] + [len(matrix) for matrix in matrices])
    return Blocks(ptr, indptr, np.concatenate([one.column for one in rows]), np.concatenate([m.value for m in rows]))


@pytest.mark.parametrize(("name", "norm", "count"), list(product(SUITABLE, ["none", "sym"], [1, 4, 11])))
def test_eigenpairs_are_those_of_a_dense_solver(name: str, norm: str, count: int) -> None:
    matrix = matrix_of(*named(SUITABLE[name]), norm)
    values, vectors, (status,) = envelope_eigenpairs(blocks_of(matrix.numpy()), np.array([0]), count)
    assert status == FOUND
    values, vectors = torch.from_numpy(values[0]), torch.from_numpy(vectors)
    check_eigenpairs(matrix, values.clamp_min(0), vectors)
    expected = dense_eigenpairs(matrix.numpy(), count)[1]
    check_projectors(values, vectors, torch.from_numpy(expected), 1e-8)


def test_matrices_have_the_same_result_in_any_company_and_any_order_of_rows() -> None:
    graphs = [named(SUITABLE[name]) for name in ("random tree", "grid", "cycle", "path")]
    matrices = [matrix_of(*graph, "sym").numpy() for graph in graphs]
    given = [matrix.copy() for matrix in matrices]
    blocks = blocks_of(*matrices)
    values, vectors, _ = envelope_eigenpairs(blocks, np.array([3, 0, 1]), 6)
    for row, number in enumerate([3, 0, 1]):
        alone = envelope_eigenpairs(blocks_of(matrices[number]), np.array([0]), 6)
        own = vectors[blocks.ptr[number] : blocks.ptr[number + 1]]
        np.testing.assert_array_equal(alone[0][0], values[row])
        np.testing.assert_array_equal(alone[1], own)
        order = np.random.default_rng(0).permutation(len(own))
        moved = envelope_eigenpairs(blocks_of(matrices[number][order][:, order]), np.array([0]), 6)
        np.testing.assert_allclose(moved[0][0], values[row], atol=1e-10)
        check_projectors(*map(torch.from_numpy, (values[row], moved[1], own[order])))
    for before, after in zip(given, matrices, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (nx.disjoint_union(nx.path_graph(50), nx.path_graph(50)), 1),
        (nx.gnp_random_graph(100, 0.3, seed=0), 2),
    ],
    ids=["two components", "a wide envelope"],
)
def test_what_other_solvers_do_better_is_left_to_them_without_a_word(
    graph: nx.Graph, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    matrix = matrix_of(*named(graph), "sym")
    assert envelope_eigenpairs(blocks_of(matrix.numpy()), np.array([0]), 5)[2] == [expected]
    check_eigenpairs(matrix, *laplacian_eigenpairs(*named(graph), 5))
    assert not caplog.text


@pytest.mark.parametrize("failure", envelope.FAILURES)
def test_a_failure_is_reported_and_another_solver_follows(
    failure: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(blocks: Blocks, chosen: np.ndarray, count: int) -> tuple[np.ndarray, ...]:
        values, vectors, status = envelope_eigenpairs(blocks, chosen, count)
        return np.zeros_like(values), np.zeros_like(vectors), np.where(np.arange(len(status)) == 1, failure, status)

    monkeypatch.setattr(solver, "envelope_eigenpairs", failing)
    graphs = [named(SUITABLE[name]) for name in ("grid", "random tree")]
    with caplog.at_level(logging.WARNING):
        found = laplacian_eigenpairs_of(graphs, 5)
    check_eigenpairs(matrix_of(*graphs[1], "sym"), *found[1])
    assert not found[0][0].any(), "the first graph's result must be the compiled solver's"
    assert caplog.text.count(f"compiled Lanczos on 151 nodes: {envelope.FAILURES[failure]}") == 1


@pytest.mark.parametrize(
    ("matrix", "reason"),
    [
        # next to the eigenvalue 1 of its 999 leaves their pivots vanish, and that of the middle explodes
        (matrix_of(*named(nx.star_graph(1000)), "none"), "pivots grew"),
        # no eigenvalue of the inverse stands out
        (torch.eye(600, dtype=torch.float64) + 1e-8 * matrix_of(*named(nx.path_graph(600)), "none"), "not converge"),
    ],
)
def test_what_cannot_be_solved_or_counted_is_told(matrix: torch.Tensor, reason: str) -> None:
    (status,) = envelope_eigenpairs(blocks_of(matrix.numpy()), np.array([0]), 4)[2]
    assert reason in envelope.FAILURES[status]


@pytest.mark.parametrize("norm", ["none", "sym", "rw"])
def test_with_and_without_a_compiler_laplacians_have_the_same_eigenspaces(
    norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = [named(SUITABLE[name]) for name in ("random tree", "cycle", "tree of equal branches")]
    graphs.append(named(nx.disjoint_union_all([nx.path_graph(120), nx.empty_graph(2), nx.cycle_graph(90)])))
    compiled = laplacian_eigenpairs_of(graphs, 7, norm)
    monkeypatch.setattr(solver, "can_run", lambda: False)
    for (edges, size), one, two in zip(graphs, compiled, laplacian_eigenpairs_of(graphs, 7, norm), strict=True):
        torch.testing.assert_close(one[0], two[0], rtol=1e-9, atol=1e-9)
        if norm == "rw":
            matrix = matrix_of(edges, size, norm)
            torch.testing.assert_close(matrix @ one[1], one[1] * one[0], rtol=1e-9, atol=1e-9)
        else:
            check_projectors(one[0], one[1], two[1], 1e-8)
