"""Eigenpairs of large sparse matrices: equal to the dense ones, and what happens where a solver fails."""

from __future__ import annotations

import logging
from functools import cache
from itertools import product

import networkx as nx
import numpy as np
import pytest
import scipy
import torch
from scipy.sparse import csc_array
from scipy.sparse.linalg import ArpackNoConvergence
from threadpoolctl import threadpool_info, threadpool_limits

from graphgps_kmip.encoding import eigensolver as solver
from graphgps_kmip.encoding import eigensolver as spectrum
from graphgps_kmip.encoding.laplacian import laplacian_eigenpairs
from tests.encoding.eigenpairs import check_eigenpairs, check_projectors, matrix_of, named


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """These graphs are small enough for the compiled solver, which has tests of its own."""
    monkeypatch.setattr(solver, "can_run", lambda: False)


@cache
def large() -> dict[str, nx.Graph]:
    """Graphs above the dense limit; in all but two eigenvalues repeat."""
    return {
        "grid": nx.grid_2d_graph(20, 20),
        "irregular": nx.random_geometric_graph(500, 0.08, seed=1),
        "cycle": nx.cycle_graph(500),
        "star": nx.star_graph(400),
        "hypercube": nx.hypercube_graph(9),
        "complete bipartite": nx.complete_bipartite_graph(150, 220),
        "three grids, one small, and isolated nodes": nx.disjoint_union_all(
            [nx.empty_graph(2), nx.grid_2d_graph(20, 20), nx.grid_2d_graph(4, 3), nx.grid_2d_graph(20, 20)]
        ),
        "more components than eigenpairs": nx.disjoint_union_all([nx.path_graph(n) for n in range(1, 30)]),
        "no edges": nx.empty_graph(400),
    }


@pytest.mark.parametrize(("name", "norm"), list(product(large(), ["none", "sym"])))
def test_the_sparse_solver_finds_the_eigenpairs_of_the_dense_one(name: str, norm: str) -> None:
    edges, size = named(large()[name])
    assert size >= solver.SPARSE_NODES
    values, vectors = laplacian_eigenpairs(edges, size, 8, norm)
    check_eigenpairs(matrix_of(edges, size, norm), values, vectors)
    dense = spectrum.dense_eigenpairs(matrix_of(edges, size, norm).numpy(), 8)[1]
    check_projectors(values, vectors, torch.from_numpy(dense))


@pytest.mark.parametrize(
    ("failure", "route"),
    [
        ("no convergence", "dense"),
        ("no convergence", "inverse iteration"),
        ("no convergence", "lobpcg"),  # without a factorisation
        ("eigenvalues missed", "dense"),
        ("eigenvalues missed", "inverse iteration"),
    ],
)
def test_a_failing_lanczos_run_is_reported_and_replaced(
    failure: str, route: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    edges, size = named(nx.random_geometric_graph(400, 0.15, seed=1))
    runs = []

    def lanczos(*arguments: object) -> tuple[np.ndarray, np.ndarray]:
        runs.append(arguments[-1])
        if failure == "no convergence":
            raise ArpackNoConvergence("no convergence", np.empty(0), np.empty((size, 0)))
        return np.arange(1.0, 6.0), np.zeros((size, 5))  # 5 lies above many more than 4 eigenvalues

    monkeypatch.setattr(spectrum, "_lanczos", lanczos)
    if route != "dense":
        monkeypatch.setattr(spectrum, "DENSE_AT_MOST", 0)
    if route == "lobpcg":
        monkeypatch.setattr(spectrum, "_stays_sparse", lambda _: False)
    with caplog.at_level(logging.WARNING):
        values, vectors = laplacian_eigenpairs(edges, size, 5, "none")
    check_eigenpairs(matrix_of(edges, size, "none"), values, vectors, 1e-6 if route == "lobpcg" else 1e-9)
    assert runs == [25, 100]  # Lanczos vectors
    assert ("no convergence" if failure == "no convergence" else "were missed") in caplog.text
    assert ("Block iteration" in caplog.text) == (route != "dense")


def test_without_factors_lanczos_runs_on_the_matrix_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectrum, "_stays_sparse", lambda _: False)
    monkeypatch.setattr(spectrum, "_factored", None)
    edges, size = named(nx.random_regular_graph(4, 400, seed=0))
    check_eigenpairs(matrix_of(edges, size, "sym"), *laplacian_eigenpairs(edges, size, 6, "sym"))


def test_graphs_whose_factors_would_fill_the_memory_are_told_from_roads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectrum, "BAND_ENTRIES", 0)
    grid, expander = nx.grid_2d_graph(60, 60), nx.random_regular_graph(3, 3600, seed=0)
    assert spectrum._stays_sparse(csc_array(nx.to_scipy_sparse_array(grid)))
    assert not spectrum._stays_sparse(csc_array(nx.to_scipy_sparse_array(expander)))


def test_eigenvalues_that_one_lanczos_run_misses_are_found(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether a real run misses a copy depends on the processor's rounding, so the first run here leaves one out.
    matrix = matrix_of(*named(nx.hypercube_graph(9)), "sym")  # eigenvalue 2 / 9 nine times
    lanczos, widths = spectrum._lanczos, []

    def misses_one_at_first(
        matrix: csc_array, factor: object, count: int, num_vectors: int
    ) -> tuple[np.ndarray, np.ndarray]:
        widths.append(num_vectors)
        if len(widths) > 1:
            return lanczos(matrix, factor, count, num_vectors)
        values, vectors = spectrum.dense_eigenpairs(matrix.toarray(), count + 1)
        return np.delete(values, 1), np.delete(vectors, 1, axis=1)

    monkeypatch.setattr(spectrum, "_lanczos", misses_one_at_first)
    with caplog.at_level(logging.WARNING):
        values, vectors = spectrum.sparse_eigenpairs(csc_array(matrix.numpy()), 10)
    check_eigenpairs(matrix, torch.from_numpy(values), torch.from_numpy(vectors))
    assert "1 eigenvalues were missed" in caplog.text
    assert widths == [25, 100], "a wider run follows the one that missed a copy"


@pytest.mark.parametrize("factorised", [True, False])
def test_lanczos_runs_on_one_thread_of_blas_which_has_its_threads_again_afterwards(
    factorised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    eigsh, seen = scipy.sparse.linalg.eigsh, []

    def threads() -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    def watched(*arguments: object, **options: object) -> tuple[np.ndarray, np.ndarray]:
        seen.append(threads())
        return eigsh(*arguments, **options)

    monkeypatch.setattr(scipy.sparse.linalg, "eigsh", watched)
    monkeypatch.setattr(spectrum, "_stays_sparse", lambda _: factorised)
    with threadpool_limits(2, user_api="blas"):
        laplacian_eigenpairs(*named(nx.grid_2d_graph(20, 20)), 4)
        assert threads() == {2}
    assert seen == [{1}]
