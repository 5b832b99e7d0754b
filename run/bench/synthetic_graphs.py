"""Made-up graphs like those of public data sets, and the models that GraphGPS trains on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial import Delaunay
from torch_geometric.data import Data
from torch_geometric.transforms import LocalDegreeProfile


@dataclass(frozen=True)
class Shape:
    """Graphs like those of a public data set, and the model that GraphGPS trains on it.

    Args:
        graph: draws one.
        columns: of node features and of edge features, 0 for none.
        classes: of the labels.
        per_graph: a label for each graph, not each node.
        loss: our name of the loss.
        batch_size: graphs in a batch.
        dim: width C.
        heads: attention heads.
        layers: how many.
        attn_dropout: of attention weights; channels are not dropped.
        num_graphs: graphs of an epoch.
    """

    graph: Callable[[np.random.Generator], Data]
    columns: tuple[int, int]
    classes: int
    per_graph: bool
    loss: str
    batch_size: int
    dim: int
    heads: int
    layers: int
    attn_dropout: float
    num_graphs: int


def superpixels(rng: np.random.Generator) -> Data:
    """Regions of an image, row by row, joined to those beside them: about 480 nodes and 2,800 directed edges."""
    num_nodes = int(rng.integers(455, 501))
    points = rng.random((num_nodes, 2))
    points = points[np.lexsort((points[:, 0], (points[:, 1] * 22).astype(int)))]
    corners = Delaunay(points).simplices  # (triangles, 3)
    pairs = np.concatenate([corners[:, [a, b]] for a, b in ((0, 1), (1, 2), (2, 0))])
    edges = np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)
    y = np.minimum(rng.geometric(0.5, num_nodes) - 1, 20)  # most are background, as in the photographs
    x, edge_attr = rng.standard_normal((num_nodes, 14)), rng.standard_normal((len(edges), 2))
    return Data(_float(x), torch.from_numpy(edges.T.astype(np.int64)), _float(edge_attr), torch.from_numpy(y))


def calls(rng: np.random.Generator) -> Data:
    """A call graph: each function is called by one before it and calls about as many; 1,400 nodes on average."""
    num_nodes = int(np.clip(rng.lognormal(6.9, 0.85), 20, 4400))
    callee = np.repeat(np.arange(1, num_nodes), 2)
    caller = (callee * rng.random(len(callee)) ** 2).astype(np.int64)  # early ones call many
    edge_index = torch.from_numpy(np.unique(np.stack([caller, callee]), axis=1))
    graph = Data(None, edge_index, y=torch.from_numpy(rng.integers(0, 5, 1)), num_nodes=num_nodes)
    return LocalDegreeProfile()(graph)


SHAPES = {
    "pascalvoc": Shape(superpixels, (14, 2), 21, False, "weighted_cross_entropy", 32, 96, 8, 4, 0.5, 128),
    "malnet": Shape(calls, (5, 0), 5, True, "cross_entropy", 16, 64, 4, 5, 0.0, 48),
}


def draw(shape: Shape, num_graphs: int) -> list[Data]:
    """Return the same graphs at each call."""
    rng = np.random.default_rng(0)
    return [shape.graph(rng) for _ in range(num_graphs)]


def nodes_of(graphs: list[Data]) -> int:
    """Return the nodes of all graphs together."""
    return sum(graph.num_nodes for graph in graphs)


def _float(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values).float()
