"""Shapes of sample graphs: edges, beacons, and how far these are from the nodes that must hear of them.

Labels of every task type from hidden values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TAIL = 5  # hops from the beacon to the body: no node has both within 2 hops
LEAVES = 9  # of one landmark
UNIT = LEAVES + 3


@dataclass(frozen=True)
class Shape:
    """Nodes and edges without features.

    Args:
        edges: source and target; an undirected edge stands once.
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

    Classes are the values themselves; of several labels each stands for one value; targets are cosines of the value's
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
