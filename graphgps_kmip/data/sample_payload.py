"""How hidden values are written into features, positions or pendant nodes, with noise in all else.

A node's symbol is its value, 0..C-1, or that of a beacon plus C.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data.dataset_record import Features
from graphgps_kmip.data.sample_graphs import Shape, edge_index
from graphgps_kmip.data.sample_plan import BEACON_LEAST, BEACON_STEP, Plan, free_columns
from graphgps_kmip.encoding.knn import KNNGraph

NOISE = 0.1  # in up to 3 columns; less in more, from which models would else learn each training node by heart
FAR = 4.0  # how much larger the code of a beacon is than that of other nodes
APART = 4.0  # distance of two cubes of width 2 along each axis: their points are nearer to each other than to others


def codes(values: int, width: int) -> np.ndarray:
    """Return the vectors of the 2C symbols, (2C, width) float32.

    Ordinary values lie on the unit circle, those of beacons on a circle of radius `FAR` that is lifted by as much. In
    wider vectors 3 columns hold this, the larger the wider, so that a linear map, as it is usually initialised, hears
    it as loudly at any width. (All columns alike would let one step of Adam move its output too far.) One column has
    steps.
    """
    if width == 1:
        steps = np.arange(values) - (values - 1) / 2
        return np.concatenate([steps, FAR + 2 * np.arange(values)]).astype(np.float32)[:, None]
    angle = 2 * np.pi * np.arange(values) / values
    circle = np.stack([np.cos(angle), np.sin(angle), np.zeros(values)], axis=1)  # (C, 3)
    table = np.concatenate([circle, FAR * (circle + [0, 0, 1])])
    wide = np.zeros((2 * values, max(3, width)), dtype=np.float32)
    wide[:, :3] = table * np.sqrt(max(3, width) / 3)
    return wide[:, :width]


def pendants(symbols: np.ndarray, values: int) -> np.ndarray:
    """Return how many pendant nodes show each symbol: as many as its value, or for a beacon 6, 10, 14, ...; (N,)."""
    return np.where(symbols < values, symbols, BEACON_LEAST + BEACON_STEP * (symbols - values))


def dressed(
    rng: np.random.Generator, features: Features, plan: Plan, shape: Shape, symbols: np.ndarray, derived: bool
) -> Data:
    """Return a graph with edges, edge features, positions and, unless they are ``derived``, node features."""
    graph = Data(num_nodes=len(symbols)) if derived else Data()  # x itself tells the number, once it is there
    if features.positions:
        graph.pos = _positions(rng, features, plan, shape, symbols)
    if plan.neighbors:
        graph = KNNGraph(plan.neighbors, num_workers=1, distance=features.edge == 1)(graph)
    else:
        graph.edge_index = edge_index(rng, shape.edges, plan.directed)
    if features.edge and graph.edge_attr is None:
        graph.edge_attr = _edge_features(rng, features.edge, graph.num_edges)
    if derived:
        return graph
    if isinstance(features.node, int):
        free = _floats(rng, symbols, plan.values, free_columns(features))
        graph.x = torch.cat([free, graph.pos], 1) if 0 < features.positions <= features.node else free
    else:
        shown = symbols if plan.carrier == "features" else None
        graph.x = _categories(rng, features.node, len(symbols), shown, 2 * plan.values)
    return graph


def _positions(rng: np.random.Generator, features: Features, plan: Plan, shape: Shape, symbols: np.ndarray) -> Tensor:
    together = np.where(shape.body, symbols, symbols[shape.beacon][shape.unit]) if plan.neighbors else symbols
    if plan.carrier == "positions":
        return _floats(rng, together, plan.values, features.positions)
    pos = torch.from_numpy(rng.uniform(-1, 1, (len(symbols), features.positions)).astype(np.float32))
    return pos + APART * torch.from_numpy(~shape.body)[:, None]


def _floats(rng: np.random.Generator, symbols: np.ndarray, values: int, width: int) -> Tensor:
    noise = rng.standard_normal((len(symbols), width), dtype=np.float32)
    return torch.from_numpy(codes(values, width)[symbols] + np.float32(NOISE / max(1, width / 3)) * noise)


def _edge_features(rng: np.random.Generator, edge: int | tuple[int, ...], edges: int) -> Tensor:
    if isinstance(edge, int):
        return torch.from_numpy(rng.standard_normal((edges, edge), dtype=np.float32))
    return _categories(rng, edge, edges)


def _categories(
    rng: np.random.Generator, sizes: tuple[int, ...], rows: int, symbols: np.ndarray | None = None, kinds: int = 0
) -> Tensor:
    """Return (rows, columns) int64: the symbols in every column whose vocabulary holds all kinds, else noise."""
    table = rng.integers(0, np.array(sizes), (rows, len(sizes)))
    if symbols is not None:
        table[:, np.array(sizes) >= kinds] = symbols[:, None]
    return torch.from_numpy(table)
