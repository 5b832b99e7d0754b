"""Eigenpairs of Laplacians: records, definitions, and the compiled, sparse and dense solvers against each other."""

from __future__ import annotations

import logging
from functools import cache
from itertools import product

import networkx as nx
import numpy as np
import pytest
import scipy
import torch
from scipy.sparse import csc_array, csr_array
from scipy.sparse.linalg import ArpackNoConvergence
from threadpoolctl import threadpool_info, threadpool_limits
from torch import Tensor

from graphgps_kmip.encoding import eigensolver
from graphgps_kmip.encoding.eigensolver import SOLVED, Blocks, dense_eigenpairs, envelope_eigenpairs
from graphgps_kmip.encoding.laplacian import compute_eigenpairs, laplacian_eigenpairs
from graphgps_kmip.ops.native.compile_kernels import compiler
from tests.recorded import load


def edges_of(graph: nx.Graph) -> Tensor:
    """Every edge in one direction only: the functions make graphs undirected."""
    return torch.tensor(list(graph.edges), dtype=torch.int64).reshape(-1, 2).T


def named(graph: nx.Graph) -> tuple[Tensor, int]:
    return edges_of(nx.convert_node_labels_to_integers(graph)), len(graph)


def matrix_of(edge_index: Tensor, num_nodes: int, norm: str) -> Tensor:
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


def check_projectors(values: Tensor, actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    """Equal spaces for every eigenvalue, but for the last one, whose space may be cut."""
    for value in values.tolist():
        same = (values - value).abs() < 1e-7
        if same[-1] and len(values) < len(actual):
            continue
        torch.testing.assert_close(
            actual[:, same] @ actual[:, same].T, expected[:, same] @ expected[:, same].T, rtol=tolerance, atol=tolerance
        )


RECORDS = list(product(["none", "sym"], [10, 4]))
GRAPHS = {
    "path": nx.path_graph(9),
    "cycle": nx.cycle_graph(8),
    "star": nx.star_graph(6),
    "complete": nx.complete_graph(5),
    "two components and two isolated nodes": nx.disjoint_union_all(
        [nx.empty_graph(1), nx.path_graph(4), nx.cycle_graph(5), nx.empty_graph(1)]
    ),
    "one node": nx.empty_graph(1),
    "no edges": nx.empty_graph(4),
}


@pytest.mark.parametrize(("norm", "max_freqs"), RECORDS)
def test_statistics_match_the_public_code_up_to_the_signs(norm: str, max_freqs: int) -> None:
    record = load(f"D_stats/lappe_stats_{norm}_L2_k{max_freqs}")
    edges = [record[f"in/edge_index_{graph}"] for graph in range(3)]
    actual = compute_eigenpairs(list(zip(edges, (7, 12, 5), strict=True)), max_freqs, norm)
    for graph, (values, vectors) in enumerate(actual):
        expected, recorded = record[f"out/EigVecs_{graph}"], record[f"out/EigVals_{graph}"]
        close = {"rtol": 1e-9, "atol": 1e-9, "equal_nan": True}
        torch.testing.assert_close(values.expand(len(expected), -1)[..., None], recorded, **close)
        single = torch.ones(max_freqs, dtype=torch.bool)  # columns whose eigenvalue does not repeat
        gaps = (values[1:] - values[:-1]) < 1e-6
        single[1:] &= ~gaps
        single[:-1] &= ~gaps
        all_values = torch.linalg.eigvalsh(record[f"extra/laplacian_{graph}"])
        if len(all_values) > max_freqs and all_values[max_freqs] - values[-1] < 1e-6:
            single[-1] = False
        signs = torch.where((vectors * expected).nan_to_num().sum(0) < 0, -1.0, 1.0)
        torch.testing.assert_close((vectors * signs)[:, single], expected[:, single], **close)
        if not single.all():
            real = min(max_freqs, len(expected))
            check_projectors(values[:real], vectors[:, :real], expected[:, :real])


@pytest.mark.parametrize(("name", "norm"), list(product(GRAPHS, ["none", "sym", "rw"])))
def test_eigenpairs_are_those_of_the_definition(name: str, norm: str) -> None:
    edges, size = named(GRAPHS[name])
    values, vectors = laplacian_eigenpairs(edges, size, 6, norm)
    matrix, real = matrix_of(edges, size, norm), min(6, size)
    assert values.shape == (6,)
    assert vectors.shape == (size, 6)
    assert values[real:].isnan().all()
    assert vectors[:, real:].isnan().all()
    values, vectors = values[:real], vectors[:, :real]
    if norm != "rw":
        check_eigenpairs(matrix, values, vectors)
        return
    expected = torch.linalg.eigvals(matrix).real.sort().values[:real].clamp_min(0)
    torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-7)  # a solver for unsymmetric matrices
    torch.testing.assert_close(matrix @ vectors, vectors * values, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(vectors.norm(dim=0), torch.ones(real, dtype=torch.float64))
    assert torch.linalg.matrix_rank(vectors) == real


@pytest.mark.parametrize("norm", ["none", "sym", "rw"])
def test_many_graphs_at_once_equal_each_alone_and_nodes_may_be_renumbered(norm: str) -> None:
    graphs = [named(graph) for graph in GRAPHS.values()] + [named(nx.barbell_graph(60, 7)), named(nx.path_graph(9))]
    graphs += [named(SUITABLE[name]) for name in ("path", "random tree", "grid", "cycle")]
    together = compute_eigenpairs(graphs, 5, norm)
    for (edges, size), (values, vectors) in zip(graphs, together, strict=True):
        alone = laplacian_eigenpairs(edges, size, 5, norm)
        torch.testing.assert_close(values, alone[0], rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(vectors, alone[1], rtol=0, atol=0, equal_nan=True)
        order = torch.randperm(size, generator=torch.Generator().manual_seed(size))
        moved = laplacian_eigenpairs(order.argsort()[edges], size, 5, norm)
        torch.testing.assert_close(moved[0], values, rtol=1e-9, atol=1e-9, equal_nan=True)
        if norm != "rw":  # there bases are not orthonormal
            real = min(5, size)
            check_projectors(values[:real], moved[1][:, :real], vectors[order][:, :real], 1e-7)


def test_edges_to_nodes_that_do_not_exist_and_empty_graphs_are_refused() -> None:
    with pytest.raises(ValueError, match="names node 2, but the graph has 2 nodes"):
        laplacian_eigenpairs(edges_of(nx.path_graph(3)), 2)
    with pytest.raises(ValueError, match="without nodes"):
        laplacian_eigenpairs(edges_of(nx.empty_graph(0)), 0)


needs_c = pytest.mark.skipif(compiler() is None, reason="no C compiler")


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
    diagonal = csr_array(scipy.sparse.block_diag([csr_array(matrix) for matrix in matrices]))
    ptr = np.cumsum([0] + [len(matrix) for matrix in matrices])
    column = diagonal.indices - np.repeat(ptr[:-1], [np.count_nonzero(matrix) for matrix in matrices])
    return Blocks(ptr, diagonal.indptr, column, diagonal.data)


@needs_c
@pytest.mark.parametrize(("name", "norm", "count"), list(product(SUITABLE, ["none", "sym"], [1, 11])))
def test_eigenpairs_are_those_of_a_dense_solver(name: str, norm: str, count: int) -> None:
    matrix = matrix_of(*named(SUITABLE[name]), norm)
    values, vectors, (status,) = envelope_eigenpairs(blocks_of(matrix.numpy()), np.array([0]), count)
    assert status == SOLVED
    values, vectors = torch.from_numpy(values[0]), torch.from_numpy(vectors)
    check_eigenpairs(matrix, values.clamp_min(0), vectors)
    expected = dense_eigenpairs(matrix.numpy(), count)[1]
    check_projectors(values, vectors, torch.from_numpy(expected), 1e-8)


@needs_c
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


@needs_c
@pytest.mark.parametrize("failure", eigensolver.FAILURES)
def test_a_failure_is_reported_and_another_solver_follows(
    failure: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(blocks: Blocks, numbers: np.ndarray, count: int) -> tuple[np.ndarray, ...]:
        values, vectors, status = envelope_eigenpairs(blocks, numbers, count)
        return np.zeros_like(values), np.zeros_like(vectors), np.where(np.arange(len(status)) == 1, failure, status)

    monkeypatch.setattr(eigensolver, "envelope_eigenpairs", failing)
    graphs = [named(SUITABLE[name]) for name in ("grid", "random tree")]
    with caplog.at_level(logging.WARNING):
        actual = compute_eigenpairs(graphs, 5)
    check_eigenpairs(matrix_of(*graphs[1], "sym"), *actual[1])
    assert not actual[0][0].any(), "the first graph's result must be the compiled solver's"
    assert caplog.text.count(f"compiled Lanczos on 151 nodes: {eigensolver.FAILURES[failure]}") == 1


@needs_c
@pytest.mark.parametrize(
    ("matrix", "reason"),
    [
        # next to the eigenvalue 1 of its 999 leaves their pivots vanish, and that of the middle explodes
        (matrix_of(*named(nx.star_graph(1000)), "none"), "pivots grew"),
        # the eigenvalues of the inverse are alike
        (torch.eye(600, dtype=torch.float64) + 1e-8 * matrix_of(*named(nx.path_graph(600)), "none"), "not converge"),
    ],
)
def test_what_cannot_be_solved_or_counted_is_told(matrix: torch.Tensor, reason: str) -> None:
    (status,) = envelope_eigenpairs(blocks_of(matrix.numpy()), np.array([0]), 4)[2]
    assert reason in eigensolver.FAILURES[status]


without_compiler = pytest.mark.usefixtures("no_compiler")


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """These graphs are small enough for the compiled solver, which has tests of its own."""
    monkeypatch.setattr(eigensolver, "unavailable_reason", lambda *_: "off")


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


@without_compiler
@pytest.mark.parametrize(("name", "norm"), list(product(large(), ["none", "sym"])))
def test_the_sparse_solver_finds_the_eigenpairs_of_the_dense_one(name: str, norm: str) -> None:
    edges, size = named(large()[name])
    assert size >= eigensolver.SPARSE_NODES
    values, vectors = laplacian_eigenpairs(edges, size, 8, norm)
    check_eigenpairs(matrix_of(edges, size, norm), values, vectors)
    dense = eigensolver.dense_eigenpairs(matrix_of(edges, size, norm).numpy(), 8)[1]
    check_projectors(values, vectors, torch.from_numpy(dense))


@without_compiler
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
        return np.arange(1.0, 6.0), np.zeros((size, 5))  # 5 is above many more than 4 eigenvalues

    monkeypatch.setattr(eigensolver, "_lanczos", lanczos)
    if route != "dense":
        monkeypatch.setattr(eigensolver, "DENSE_AT_MOST", 0)
    if route == "lobpcg":
        monkeypatch.setattr(eigensolver, "_stays_sparse", lambda _: False)
    with caplog.at_level(logging.WARNING):
        values, vectors = laplacian_eigenpairs(edges, size, 5, "none")
    check_eigenpairs(matrix_of(edges, size, "none"), values, vectors, 1e-6 if route == "lobpcg" else 1e-9)
    assert runs == [25, 100]  # Lanczos vectors
    assert ("no convergence" if failure == "no convergence" else "were missed") in caplog.text
    assert ("Block iteration" in caplog.text) == (route != "dense")


@without_compiler
def test_eigenvalues_that_one_lanczos_run_misses_are_found(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether a real run misses a copy depends on the processor's rounding, so the first run here leaves one out.
    matrix = matrix_of(*named(nx.hypercube_graph(9)), "sym")  # eigenvalue 2 / 9 nine times
    lanczos, widths = eigensolver._lanczos, []

    def misses_one_at_first(
        matrix: csc_array, factor: object, count: int, num_vectors: int
    ) -> tuple[np.ndarray, np.ndarray]:
        widths.append(num_vectors)
        if len(widths) > 1:
            return lanczos(matrix, factor, count, num_vectors)
        values, vectors = eigensolver.dense_eigenpairs(matrix.toarray(), count + 1)
        return np.delete(values, 1), np.delete(vectors, 1, axis=1)

    monkeypatch.setattr(eigensolver, "_lanczos", misses_one_at_first)
    with caplog.at_level(logging.WARNING):
        values, vectors = eigensolver.sparse_eigenpairs(csc_array(matrix.numpy()), 10)
    check_eigenpairs(matrix, torch.from_numpy(values), torch.from_numpy(vectors))
    assert "1 eigenvalues were missed" in caplog.text
    assert widths == [25, 100], "a wider run follows the one that missed a copy"


@without_compiler
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
    monkeypatch.setattr(eigensolver, "_stays_sparse", lambda _: factorised)
    with threadpool_limits(2, user_api="blas"):
        laplacian_eigenpairs(*named(nx.grid_2d_graph(20, 20)), 4)
        assert threads() == {2}
    assert seen == [{1}]
