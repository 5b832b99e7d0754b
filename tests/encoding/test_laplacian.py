"""Eigenpairs of Laplacians: the public code's records, plain definitions, symmetries, errors."""

from __future__ import annotations

from itertools import product
from math import pi

import networkx as nx
import pytest
import torch

from graphgps_kmip.encoding.laplacian import EIGVEC_NORMS, laplacian_eigenpairs, laplacian_eigenpairs_of
from tests.encoding.eigenpairs import check_eigenpairs, check_projectors, edges_of, matrix_of, named
from tests.recorded import load

RECORDS = [
    ("none", "L2", 10), ("none", "L2", 4), ("sym", "L2", 10), ("sym", "L2", 4), ("sym", "L1", 10),
    ("sym", "abs-max", 10), ("sym", "wavelength", 10), ("sym", "wavelength-soft", 10),
]  # fmt: skip
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


@pytest.mark.parametrize(("norm", "eigvec_norm", "max_freqs"), RECORDS)
def test_statistics_match_the_public_code_up_to_the_signs(norm: str, eigvec_norm: str, max_freqs: int) -> None:
    record = load(f"D_stats/lappe_stats_{norm}_{eigvec_norm}_k{max_freqs}")
    edges = [record[f"in/edge_index_{graph}"] for graph in range(3)]
    found = laplacian_eigenpairs_of(list(zip(edges, (7, 12, 5), strict=True)), max_freqs, norm, eigvec_norm)
    for graph, (values, vectors) in enumerate(found):
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
        if eigvec_norm == "L2" and not single.all():
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


def test_directions_repeated_edges_and_loops_of_the_edge_list_do_not_matter() -> None:
    edges, size = named(GRAPHS["path"])
    expected = laplacian_eigenpairs(edges, size, 4)
    loops = torch.tensor([[0, 3], [0, 3]])
    found = laplacian_eigenpairs(torch.cat([edges, edges.flip(0), edges, loops], dim=1), size, 4)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


@pytest.mark.parametrize("norm", EIGVEC_NORMS)
def test_eigenvectors_are_scaled_as_their_norm_says(norm: str) -> None:
    edges, size = named(GRAPHS["path"])
    values, unit = laplacian_eigenpairs(edges, size, 5, "none")
    scaled = laplacian_eigenpairs(edges, size, 5, "none", norm)[1]
    for value, before, after in zip(values.tolist(), unit.T, scaled.T, strict=True):
        largest, root = before.abs().max(), value**0.5 if value > 1e-12 else 1.0
        soft = sum(v.abs() * v.abs().exp() for v in before) / sum(v.abs().exp() for v in before)
        expected = {
            "L1": before / before.abs().sum(),
            "L2": before,
            "abs-max": before / largest,
            "wavelength": before * pi / (2 * largest * root),
            "wavelength-asin": (before / largest).asin() / root,
            "wavelength-soft": before / (soft * root),
        }[norm]
        torch.testing.assert_close(after, expected)


@pytest.mark.parametrize("norm", ["none", "sym", "rw"])
def test_many_graphs_at_once_equal_each_alone_and_nodes_may_be_renumbered(norm: str) -> None:
    graphs = [named(graph) for graph in GRAPHS.values()] + [named(nx.barbell_graph(60, 7)), named(nx.path_graph(9))]
    together = laplacian_eigenpairs_of(graphs, 5, norm)
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, "sym", "L2"), "max_freqs must be at least 1, got 0"),
        ((3, "random", "L2"), "laplacian_norm must be one of none, sym, rw, got 'random'"),
        ((3, "sym", "L3"), "eigvec_norm must be one of L1, L2, .*got 'L3'"),
    ],
)
def test_unknown_options_are_refused(arguments: tuple[int, str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        laplacian_eigenpairs(edges_of(nx.path_graph(3)), 3, *arguments)


def test_edges_to_nodes_that_do_not_exist_and_empty_graphs_are_refused() -> None:
    with pytest.raises(ValueError, match="names node 2, but the graph has 2 nodes"):
        laplacian_eigenpairs(edges_of(nx.path_graph(3)), 2)
    with pytest.raises(ValueError, match="without nodes"):
        laplacian_eigenpairs(edges_of(nx.empty_graph(0)), 0)
