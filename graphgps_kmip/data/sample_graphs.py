"""Graphs of synthetic samples: edges, beacons far from the nodes that depend on them, features, and labels.

A node's symbol is its hidden value, 0..C-1, or that of a beacon plus C. Symbols are written into features, positions or
pendant nodes, with noise in all else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data.dataset_record import Features
from graphgps_kmip.encoding.knn import KNNGraph

if TYPE_CHECKING:
    from graphgps_kmip.data.synthetic_sample import Plan

BEACON_STEP, BEACON_MIN = 4, 6  # pendant nodes that show a beacon's value in the structure
TAIL = 5  # hops from the beacon to the body: no node has both within 2 hops
LEAVES = 9  # of one landmark
UNIT = LEAVES + 3


@dataclass(frozen=True)
class Shape:
    """Nodes and edges without features.

    Args:
        edges: source and target; an undirected edge is given once.
        beacon: the node of each unit that carries its hidden value.
        body: the nodes that are far from the beacons.
        unit: the part of the graph, with a beacon of its own, that a node belongs to.

    Shapes: edges (2, M), beacon (U,), body (N,) bool, unit (N,).
    """

    edges: np.ndarray
    beacon: np.ndarray
    body: np.ndarray
    unit: np.ndarray

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.unit)


def tailed(rng: np.random.Generator, nodes: int, edges: int) -> Shape:
    """Return a connected random body with a tail of `TAIL` edges that ends at the beacon, the last node."""
    body = max(3, nodes - TAIL)
    nodes = body + TAIL
    child = np.arange(1, body)
    tree = np.stack([np.maximum(child - rng.integers(1, 5, body - 1), 0), child])  # near parents: a long diameter
    tail = np.arange(body, nodes)
    tail = np.stack([tail, [rng.integers(body), *tail[:-1]]])  # towards the body, where edges are directed
    fixed = np.concatenate([tail, tree], axis=1)
    more = _more_edges(rng, np.arange(body), fixed, edges - fixed.shape[1])
    beacon = np.array([nodes - 1])
    return Shape(np.concatenate([fixed, more], axis=1), beacon, np.arange(nodes) < body, np.zeros(nodes, int))


def clusters(rng: np.random.Generator, nodes: int, edges: int) -> Shape:
    """Return one connected graph of units: landmark (the beacon) - relay - hub - `LEAVES` leaves (the body).

    All other edges join leaves, of any units: a leaf is 3 hops away from its own landmark and further from all others.
    """
    units = max(5, nodes // UNIT)
    node = np.arange(units * UNIT)
    first = UNIT * np.arange(units)
    arm = np.stack([[0, 1, *[2] * LEAVES], np.arange(1, UNIT)])  # (2, UNIT - 1)
    arms = (arm[:, None] + first[:, None]).reshape(2, -1)
    earlier = UNIT * rng.integers(np.arange(1, units))  # a tree of units
    joints = np.stack([earlier, first[1:]]) + rng.integers(UNIT - LEAVES, UNIT, (2, units - 1))
    fixed = np.concatenate([arms, joints], axis=1)
    leaf = node % UNIT >= UNIT - LEAVES
    more = _more_edges(rng, node[leaf], fixed, edges - fixed.shape[1])
    return Shape(np.concatenate([fixed, more], axis=1), first, leaf, node // UNIT)


def points(nodes: int, apart: int) -> Shape:
    """Return a point cloud without edges; its last ``apart`` points, the beacon among them, are not in the body."""
    return Shape(np.zeros((2, 0), int), np.array([nodes - 1]), np.arange(nodes) < nodes - apart, np.zeros(nodes, int))


def with_pendants(shape: Shape, counts: np.ndarray) -> tuple[Shape, np.ndarray]:
    """Hang ``counts`` new nodes on each node; also return for each node the one that it hangs on, or is."""
    parent = np.repeat(np.arange(shape.num_nodes), counts)
    owner = np.concatenate([np.arange(shape.num_nodes), parent])
    pendant = np.arange(shape.num_nodes, len(owner))
    edges = np.concatenate([shape.edges, [parent, pendant]], axis=1)
    return Shape(edges, shape.beacon, shape.body[owner], shape.unit[owner]), owner


def edge_index(rng: np.random.Generator, edges: np.ndarray, directed: bool) -> torch.Tensor:
    """Return the edges in random order, in both directions unless ``directed``; (2, E)."""
    edges = edges if directed else np.concatenate([edges, edges[::-1]], axis=1)
    return torch.from_numpy(edges[:, rng.permutation(edges.shape[1])])


def _more_edges(rng: np.random.Generator, nodes: np.ndarray, taken: np.ndarray, number: int) -> np.ndarray:
    """Return up to ``number`` edges between ``nodes`` in random directions, none twice and none that is ``taken``."""
    first, second = np.triu_indices(len(nodes), 1)
    pairs = np.stack([nodes[first], nodes[second]])
    low, high = np.sort(taken, axis=0)
    base = 1 + max(nodes.max(), high.max())
    pairs = pairs[:, ~np.isin(pairs[0] * base + pairs[1], low * base + high)]
    pairs = pairs[:, rng.permutation(pairs.shape[1])[: max(0, number)]]
    return np.where(rng.random(pairs.shape[1]) < 0.5, pairs[::-1], pairs)


TOKENS = 5  # words of a function name in ogbg-code2
POSITIVES, NEGATIVES = 4, 10  # pairs of nodes in a graph; negatives for each positive


class Labels:
    """The label of each hidden value, drawn once for a data set.

    Classes are the values themselves; of several labels each means one value; targets are cosines of the value's
    angle, each with another phase; tokens are random.

    Args:
        rng: draws them.
        task_type: a row of `TASK_TYPES`.
        values: number C of hidden values.
        classes: number of classes, label columns, targets or tokens.
    """

    def __init__(self, rng: np.random.Generator, task_type: str, values: int, classes: int) -> None:
        value, column = np.arange(values), np.arange(classes)
        table = {
            "classification": lambda: value,
            "classification_multilabel": lambda: value[:, None] == rng.permutation(classes) % values,
            "regression": lambda: np.cos(2 * np.pi * (value[:, None] / values + column / classes)),
            "subtoken_prediction": lambda: rng.integers(classes, size=(values, TOKENS)),
            "link_ranking": lambda: value,  # not used: see `pairs`
            "link_prediction": lambda: value,
        }[task_type]()
        self.table = torch.from_numpy(table if table.dtype == np.int64 else table.astype(np.float32))

    def __call__(self, value: np.ndarray) -> Tensor:
        """Return the labels of hidden values (rows,): (rows,) int64, or (rows, columns)."""
        return self.table[torch.from_numpy(value)]


def pairs(rng: np.random.Generator, own: np.ndarray, beacon: int, values: int) -> tuple[Tensor, Tensor]:
    """Return pairs of nodes, `NEGATIVES` after each of `POSITIVES`, with the same first node; and their labels.

    A pair is positive if its values and the beacon's sum to a multiple of C. In small graphs pairs come twice.

    Shapes: own (N,) -> (2, L) int64, (L,) int64 in {0, 1}.
    """
    node = np.arange(len(own))
    linked = (own[:, None] + own + beacon) % values == 0  # (N, N)
    other = node[:, None] != node
    able = np.flatnonzero((linked & other).any(1) & (~linked & other).any(1))
    ends = []
    for first in rng.choice(able, POSITIVES):
        positive = rng.choice(np.flatnonzero(linked[first] & other[first]))
        negatives = rng.choice(np.flatnonzero(~linked[first] & other[first]), NEGATIVES)
        ends.append(np.stack([np.full(1 + NEGATIVES, first), [positive, *negatives]]))
    label = np.tile(np.arange(1 + NEGATIVES) == 0, POSITIVES)
    return torch.from_numpy(np.concatenate(ends, axis=1)), torch.from_numpy(label.astype(np.int64))


def free_columns(features: Features) -> int:
    """Return the number of float columns of ``x`` that hold no coordinate."""
    return features.node - features.positions if features.node >= features.positions else features.node


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
    return np.where(symbols < values, symbols, BEACON_MIN + BEACON_STEP * (symbols - values))


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
