"""Directed k-nearest-neighbour graphs of point clouds (k-MIP paper, data sets), exact on ties; scipy's k-d tree."""

from __future__ import annotations

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

# A gap between two distances that is larger than this (relative) is real; below it the tree's rounding could lie, so
# we look further. Far above float64 rounding (1e-15); too large only costs a second query.
TIE = 1e-9
SMALL = 2**15  # candidates up to which one thread and one pass are fastest: starting threads takes 0.5 ms a query
BLOCK = 2**20  # candidates sorted at once: bounds the memory where very many points tie


def nearest_neighbors(points: np.ndarray, k: int, num_workers: int = -1) -> np.ndarray:
    """Return the k nearest other points of every point, nearest first, by Euclidean distance.

    Ties are broken by the neighbours' coordinates (first axis first), then by their index, so that the result depends
    on nothing else, even on grids and among duplicates. Distances are compared as float64 sums of squared differences.
    O(N log N) unless very many points tie.

    Args:
        points: coordinates, finite.
        k: number of neighbours, at least 1; N - 1 where there are fewer.
        num_workers: threads of the tree's queries, -1 for all cores.

    Shapes: points (N, D) -> (N, min(k, N - 1)) int64.

    Raises:
        ValueError: k < 1, points not (N, D), or squared distances that are not finite in float64.
    """
    points = _checked(points, k)
    num = len(points)
    k = min(k, max(num - 1, 0))
    if k == 0:
        return np.empty((num, 0), dtype=np.int64)
    # Points sorted by coordinates (stable: then by index) make the tie rule "the smaller row first".
    order = np.lexsort(points.T[::-1])
    points = points[order]
    tree = cKDTree(points)
    found = np.empty((num, k), dtype=np.int64)
    # Candidates of a point: itself, k others, and one more to see whether the k-th ties. Few points: all of them.
    rows, width = np.arange(num), num if num**2 <= SMALL else k + 2
    while rows.size:
        width = min(width, num)
        step = max(1, BLOCK // width)
        blocks = [rows[start : start + step] for start in range(0, rows.size, step)]
        rows = np.concatenate([_fill(found, tree, points, block, width, num_workers) for block in blocks])
        width *= 2
    neighbors = np.empty_like(found)
    neighbors[order] = order[found]
    return neighbors


def knn_graph(pos: Tensor, k: int, num_workers: int = -1) -> Tensor:
    """Return the edges (neighbour -> point) from the k nearest points to every point, itself excluded.

    Every point has exactly min(k, N - 1) in-edges. Edges are sorted by point, then as in `nearest_neighbors`.

    Args:
        pos: coordinates.
        k: number of neighbours, at least 1.
        num_workers: threads, -1 for all cores.

    Shapes: pos (N, D) -> (2, N * min(k, N - 1)) int64, row 0 the neighbour, row 1 the point.
    """
    neighbors = nearest_neighbors(pos.detach().cpu().numpy(), k, num_workers)
    target = np.arange(len(neighbors)).repeat(neighbors.shape[1])
    return torch.from_numpy(np.stack([neighbors.reshape(-1), target])).to(pos.device)


class KNNGraph(BaseTransform):
    """Set ``data.edge_index`` to the directed k-nearest-neighbour graph of ``data.pos``.

    Args:
        k: in-edges of each point, at least 1; fewer where there are not so many other points.
        num_workers: threads, -1 for all cores.
        distance: also set ``data.edge_attr`` to the Euclidean distances, (E, 1) in the dtype of ``pos``.

    Raises:
        ValueError: ``data.pos`` is missing, or the data is a batch of several graphs.
    """

    def __init__(self, k: int, num_workers: int = -1, distance: bool = False) -> None:
        self.k, self.num_workers, self.distance = k, num_workers, distance

    def forward(self, data: Data) -> Data:
        """Return the data with its new edges; edge features of older edges are dropped."""
        if data.pos is None:
            raise ValueError(f"KNNGraph(k={self.k}) needs data.pos, the coordinates (N, D): this graph has none")
        if "batch" in data:
            raise ValueError("KNNGraph joins points of one graph only: apply it before the graphs are batched")
        data.edge_index = knn_graph(data.pos, self.k, self.num_workers)
        data.edge_attr = None
        if self.distance:
            source, target = data.edge_index
            data.edge_attr = (data.pos[source] - data.pos[target]).norm(dim=-1, keepdim=True)  # (E, 1)
        return data

    def __repr__(self) -> str:
        return f"KNNGraph(k={self.k})"


def _checked(points: np.ndarray, k: int) -> np.ndarray:
    if k < 1:
        raise ValueError(f"a k-nearest-neighbour graph needs k >= 1, got {k}")
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] == 0:
        raise ValueError(f"points must be (N, D) with D >= 1, got shape {points.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        extent = np.ptp(points, axis=0) if len(points) else np.zeros(1)
        if not np.isfinite((extent**2).sum()):
            raise ValueError("points must be finite and their squared distances below 1e308: check pos for NaN and inf")
    return points


def _fill(
    found: np.ndarray, tree: cKDTree, points: np.ndarray, rows: np.ndarray, width: int, num_workers: int
) -> np.ndarray:
    """Fill the rows of ``found`` whose ``width`` nearest candidates settle them; return the other rows."""
    k = found.shape[1]
    threads = num_workers if rows.size * width > SMALL else 1
    distance, candidate = tree.query(points[rows], k=width, workers=threads)  # (R, width), the point itself included
    # Entry k is the k-th other point. Once the last candidate is truly farther, every point that ties was seen.
    sure = (distance[:, -1] > distance[:, k] * (1 + TIE)) | (width == len(points))
    settled, candidate = rows[sure], np.sort(candidate[sure], axis=1)
    # Axis by axis: an (R, width, D) array would be six times slower.
    squared = sum((points[settled, None, d] - points[candidate, d]) ** 2 for d in range(points.shape[1]))  # (R, width)
    squared[candidate == settled[:, None]] = np.inf
    nearest = np.argsort(squared, axis=1, kind="stable")[:, :k]  # stable: of equals the smaller row first
    found[settled] = np.take_along_axis(candidate, nearest, axis=1)
    return rows[~sure]
