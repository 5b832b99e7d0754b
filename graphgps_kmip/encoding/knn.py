"""Directed k-nearest-neighbour graphs of point clouds (k-MIP paper, data sets), exact on ties; scipy's k-d tree."""

from __future__ import annotations

import numpy as np
import scipy
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from graphgps_kmip.errors import InputError

TIE = 1e-9  # relative gap of distances up to which they may be equal, but for the tree's rounding (1e-15)
SMALL = 2**15  # candidates up to which one thread and one pass are fastest: starting threads takes 0.5 ms a query
BLOCK = 2**20  # candidates sorted at once: bounds the memory where very many points tie


def nearest_neighbors(points: np.ndarray, k: int, num_workers: int = -1) -> np.ndarray:
    """Return the k nearest other points of every point, nearest first, by Euclidean distance.

    Ties are broken by the neighbours' coordinates (first axis first), then by their index. Distances are compared as
    float64 sums of squared differences. O(N log N) unless very many points tie.

    Args:
        points (ndarray): Coordinates, finite.
        k (int): Number of neighbours, at least 1; N - 1 where there are fewer.
        num_workers (int, optional): Threads of the tree's queries, -1 for all cores. (default: -1)

    Shapes: points (N, D) -> (N, min(k, N - 1)) int64.

    Raises:
        InputError: k < 1, points not (N, D), or squared distances that are not finite in float64.
    """
    if k < 1:
        raise InputError(f"a k-nearest-neighbour graph needs k >= 1, got {k}")
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] == 0:
        raise InputError(f"points must be (N, D) with D >= 1, got shape {points.shape}")
    num = len(points)
    with np.errstate(over="ignore", invalid="ignore"):
        if num and not np.isfinite((np.ptp(points, axis=0) ** 2).sum()):
            raise InputError("points must be finite and their squared distances below 1e308: check pos for NaN and inf")
    k = min(k, max(num - 1, 0))
    if k == 0:
        return np.empty((num, 0), dtype=np.int64)
    # Points sorted by coordinates (stable: then by index) make the tie rule "the smaller row first". Of duplicates one
    # place represents all, or they would crowd the tree's answers; their rows are adjacent.
    order = np.lexsort(points.T[::-1])
    points = points[order]
    first = np.flatnonzero(np.append(True, (points[1:] != points[:-1]).any(axis=1)))  # row of a place's first point
    tree = scipy.spatial.cKDTree(points[first], leafsize=16)  # of 8 to 48 the fastest, by 5 % over the default
    neighbors = np.empty((num, k), dtype=np.int64)
    # Candidates of a place: itself, k others, and one more to see whether the k-th ties. Few places: all of them.
    # Asked in the order of the tree's leaves, neighbours in space share what is in the cache.
    rows, width = tree.indices, len(first) if len(first) ** 2 <= SMALL else k + 2
    while rows.size:
        width = min(width, len(first))
        step, unsettled = max(1, BLOCK // width), []
        for start in range(0, rows.size, step):
            block, nearest, left = _nearest_places(tree, rows[start : start + step], k, width, num_workers)
            points_here, other_points = _other_points(block, nearest, np.append(first, num), k)
            neighbors[order[points_here]] = order[other_points]
            unsettled.append(left)
        rows, width = np.concatenate(unsettled), 2 * width
    return neighbors


def knn_graph(pos: Tensor, k: int, num_workers: int = -1) -> Tensor:
    """Return the edges (neighbour -> point), sorted by point: pos (N, D) -> (2, N * min(k, N - 1)), int64."""
    return edges_from(nearest_neighbors(pos.detach().cpu().numpy(), k, num_workers)).to(pos.device)


def edges_from(neighbors: np.ndarray) -> Tensor:
    """Return the edges (neighbour -> point) of a table of neighbours: (N, K), any integers -> (2, N * K), int64."""
    edges = np.empty((2, *neighbors.shape), dtype=np.int64)
    edges[0], edges[1] = neighbors, np.arange(len(neighbors))[:, None]
    return torch.from_numpy(edges.reshape(2, -1))


def edge_lengths(pos: Tensor, edge_index: Tensor) -> Tensor:
    """Return the Euclidean lengths of edges in the dtype of ``pos``: (N, D), (2, E) -> (E, 1)."""
    source, target = edge_index
    # Axis by axis: half the time of gathering and reducing (E, D).
    return sum((axis[source] - axis[target]).square() for axis in pos.unbind(1)).sqrt()[:, None]


class KNNGraph(BaseTransform):
    """Set ``data.edge_index`` to the directed k-nearest-neighbour graph of ``data.pos``.

    Args:
        k (int): In-edges of each point, at least 1; fewer where there are not so many other points.
        num_workers (int, optional): Threads, -1 for all cores. (default: -1)
        distance (bool, optional): Set ``data.edge_attr`` to Euclidean distances (E, 1). (default: ``False``)

    Raises:
        InputError: ``data.pos`` is missing, or the data is a batch of several graphs.
    """

    def __init__(self, k: int, num_workers: int = -1, distance: bool = False) -> None:
        self.k, self.num_workers, self.distance = k, num_workers, distance

    def forward(self, data: Data) -> Data:
        """Return the data with its new edges; edge features of older edges are dropped."""
        if data.pos is None:
            raise InputError(f"KNNGraph(k={self.k}) needs data.pos, the coordinates (N, D): this graph has none")
        if "batch" in data:
            raise InputError("KNNGraph joins points of one graph only: apply it before the graphs are batched")
        data.edge_index = knn_graph(data.pos, self.k, self.num_workers)
        data.edge_attr = edge_lengths(data.pos, data.edge_index) if self.distance else None
        return data

    def __repr__(self) -> str:
        return f"KNNGraph(k={self.k})"


def _nearest_places(
    tree: scipy.spatial.cKDTree, rows: np.ndarray, k: int, width: int, num_workers: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows that ``width`` candidates settle, the nearest places of each, and the other rows.

    Shapes: rows (R,) -> (S,), (S, min(k + 1, U)) with the place itself, (R - S,); U places.
    """
    places, last = tree.data, min(k, tree.n - 1)
    threads = num_workers if rows.size * width > SMALL else 1
    distance, candidate = tree.query(places[rows], k=width, workers=threads)
    distance, candidate = distance.reshape(-1, width), candidate.reshape(-1, width)
    # Entry k is the k-th other place. Once the last candidate is truly farther, every place that ties was seen.
    sure = (distance[:, -1] > distance[:, last] * (1 + TIE)) | (width == tree.n)
    tied = (distance[:, 1 : last + 1] <= distance[:, :last] * (1 + TIE)).any(axis=1)
    tied |= distance[:, min(last + 1, width - 1)] <= distance[:, last] * (1 + TIE)
    nearest = candidate[:, : last + 1]  # the tree's order, right wherever distances truly differ
    tied = np.flatnonzero(tied & sure)
    candidate = np.sort(candidate[tied], axis=1)
    # Axis by axis: an (R, width, D) array would be six times slower.
    squared = sum((places[rows[tied], None, d] - places[candidate, d]) ** 2 for d in range(tree.m))  # (R, width)
    by_distance = np.argsort(squared, axis=1, kind="stable")[:, : last + 1]  # stable: of equals the smaller row first
    nearest[tied] = np.take_along_axis(candidate, by_distance, axis=1)
    return (rows, nearest, rows[:0]) if sure.all() else (rows[sure], nearest[sure], rows[~sure])


def _other_points(rows: np.ndarray, nearest: np.ndarray, first: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the points at the places ``rows`` and the k other points nearest to each, (P,), (P, k).

    Shapes: rows (R,), nearest places (R, W), itself included, first point of each place and their number (U + 1,).
    """
    points = rows
    if first[-1] >= len(first):  # there are duplicates: replace each place by its points
        count = np.diff(first)
        many, start = count[nearest], first[nearest]  # (R, W)
        column = np.minimum(many.cumsum(axis=1) - many, k + 1)  # where a place's points begin in the list
        # Differences of successive list entries: one inside a place, a jump to the first point of the next.
        start[:, 1:] -= start[:, :-1].copy() + many[:, :-1] - 1
        steps = np.ones((len(rows), k + 2), dtype=np.int64)  # the last column is for what comes too late
        np.put_along_axis(steps, column, start, axis=1)
        nearest = steps[:, : k + 1].cumsum(axis=1)
        place = np.arange(len(rows)).repeat(count[rows])  # of each point
        offset = np.arange(len(place)) - (count[rows].cumsum() - count[rows])[place]
        points, nearest = first[rows][place] + offset, nearest[place]
    passed = np.logical_or.accumulate(nearest[:, :k] == points[:, None], axis=1)  # past the point itself
    return points, np.where(passed, nearest[:, 1:], nearest[:, :k])
