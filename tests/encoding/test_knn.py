"""k-nearest-neighbour graphs against a brute-force search that follows the tie rule word by word."""

from __future__ import annotations

from functools import reduce
from operator import add
from unittest.mock import patch

import numpy as np
import pytest
import scipy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding.knn import KNNGraph, nearest_neighbors


def brute_force(points: np.ndarray, k: int) -> np.ndarray:
    rows = [tuple(float(value) for value in point) for point in points]

    def key(i: int, j: int) -> tuple:
        squares = ((a - b) ** 2 for a, b in zip(rows[i], rows[j], strict=True))
        return reduce(add, squares), rows[j], j  # from Python 3.12 on, sum() compensates its rounding

    k = min(k, max(len(rows) - 1, 0))
    others = [sorted((j for j in range(len(rows)) if j != i), key=lambda j: key(i, j))[:k] for i in range(len(rows))]
    return np.array(others, dtype=np.int64).reshape(len(rows), k)


def grid(side: int, dim: int) -> np.ndarray:
    return np.stack(np.meshgrid(*[np.arange(float(side))] * dim), -1).reshape(-1, dim)


@given(
    points=st.tuples(st.integers(0, 30), st.integers(1, 3)).flatmap(
        lambda shape: arrays(np.float64, shape, elements=st.integers(-2, 2).map(float))
    ),
    k=st.integers(1, 12),
)
@settings(max_examples=150, deadline=None)
def test_grids_full_of_ties_and_duplicates_follow_the_tie_rule(points: np.ndarray, k: int) -> None:
    np.testing.assert_array_equal(nearest_neighbors(points, k), brute_force(points, k))


@given(
    points=arrays(np.float32, st.tuples(st.integers(0, 25), st.integers(1, 3)), elements=st.floats(width=32)),
    k=st.integers(1, 6),
)
@settings(max_examples=100, deadline=None)
def test_any_finite_floats_follow_the_tie_rule(points: np.ndarray, k: int) -> None:
    if np.isfinite(points).all():
        np.testing.assert_array_equal(nearest_neighbors(points, k), brute_force(points, k))
    else:
        with pytest.raises(ValueError, match="finite"):
            nearest_neighbors(points, k)


# More points than are looked at in one pass: the candidates have to be widened until every tie has been seen.
LARGE = {
    "plane grid": grid(15, 2),
    "space grid": grid(6, 3),
    "one place": np.ones((200, 3)),
    "few places": np.random.default_rng(0).integers(0, 2, (220, 3)).astype(float),
    "no ties": np.random.default_rng(1).random((220, 3)),
    "a line": np.arange(200.0)[:, None],
    "some twice": np.random.default_rng(3).random((220, 3))[np.random.default_rng(4).integers(0, 220, 300)],
    "signed zeros": np.random.default_rng(5).choice([0.0, -0.0, 1.0], (220, 3)),
    "differences that square to nothing": np.random.default_rng(6).integers(0, 3, (220, 2)) * 1e-200,
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("k", [1, 7])
def test_ties_beyond_the_first_candidates_are_seen(name: str, k: int) -> None:
    points = np.random.default_rng(2).permutation(LARGE[name])
    np.testing.assert_array_equal(nearest_neighbors(points, k), brute_force(points, k))


def test_points_at_one_place_are_searched_once() -> None:
    points = np.concatenate([np.zeros((3000, 3)), np.random.default_rng(0).random((1000, 3))])
    real = scipy.spatial.cKDTree
    with patch.object(scipy.spatial, "cKDTree", wraps=real) as tree:  # else 9 million pairs would be looked at
        neighbors = nearest_neighbors(points, 8)
    assert tree.call_args.args[0].shape == (1001, 3)
    assert neighbors[2000].tolist() == list(range(8))
    assert neighbors[3].tolist() == [0, 1, 2, 4, 5, 6, 7, 8]


def test_the_transform_sets_edges_and_on_request_their_lengths() -> None:
    data = Data(pos=torch.tensor([[0.0, 0.0], [3.0, 4.0]]), edge_attr=torch.zeros(9, 1))
    plain, measured = KNNGraph(1)(data), KNNGraph(1, distance=True)(data)
    assert plain.edge_index.tolist() == [[1, 0], [0, 1]]
    assert plain.edge_attr is None
    torch.testing.assert_close(measured.edge_attr, torch.tensor([[5.0], [5.0]]))
    assert data.edge_attr.shape == (9, 1)


@pytest.mark.parametrize(
    ("points", "k", "message"),
    [
        (np.zeros((3, 2)), 0, "k >= 1, got 0"),
        (np.zeros(3), 2, "shape \\(3,\\)"),
        (np.array([[0.0], [np.nan]]), 1, "NaN"),
        (np.array([[0.0], [1e200]]), 1, "1e308"),
    ],
)
def test_what_has_no_neighbours_is_refused(points: np.ndarray, k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nearest_neighbors(points, k)


def test_a_graph_without_positions_and_a_batch_are_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.pos"):
        KNNGraph(2)(Data(x=torch.ones(3, 1)))
    with pytest.raises(ValueError, match="before the graphs are batched"):
        KNNGraph(2)(Batch.from_data_list([Data(pos=torch.ones(3, 2))]))
