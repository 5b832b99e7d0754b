"""Synthetic samples: small stand-ins for data sets, with a signal that two layers of message passing cannot read.

In every graph one node, the beacon, looks unlike all others and carries a hidden value b in 0..C-1; ordinary nodes
carry values of their own. Labels follow from the sum of both modulo C, which no sum of local features tells:

- graph: (s + b) mod C, where s is the value that most nodes of the body carry. A random body has a tail of 5 edges
  that ends at the beacon; a point cloud has the beacon in a cluster of k + 1 points, which no edge joins to the others.
- inductive_node: (own value + b) mod C, in the same graphs.
- link: two nodes belong together if their values and b sum to a multiple of C.
- node (one graph): many units, each with a landmark whose value is the class of the whole unit: 3/4 of the nodes, the
  leaves, are exactly 3 hops away from it. Units are divided, not nodes: what is memorised of one helps in no other.

Attention to the whole graph reads b from anywhere; at level node, three layers of message passing do. Two layers of
message passing with a linear head learn no more than the prior of the labels and the few nodes near a beacon.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import SPLITS, GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, Statistics
from graphgps_kmip.data.sample_graphs import (
    BEACON_MIN,
    BEACON_STEP,
    LEAVES,
    UNIT,
    Labels,
    Shape,
    clusters,
    dressed,
    free_columns,
    pairs,
    pendants,
    points,
    tailed,
    with_pendants,
)
from graphgps_kmip.errors import InputError

BOUNDS = (0, 0.6, 0.8, 1)  # of training, validation and test; of all sets alike, so that each can be learned
AGREE = 0.8  # share of the nodes of a body that carry their graph's value; the others carry any
VARIED = 0.3  # sizes of graphs differ from their mean by up to this share


def make_sample(record: DatasetRecord, seed: int = 0, featurize: Callable[[Data], Data] | None = None) -> GraphDataset:
    """Return a sample that follows the schema of a record, and plants what the module's first lines say.

    It has at most 300 graphs of about 60 nodes (4 (k + 1) for k-nearest-neighbour graphs if that is more), or one graph
    of at most 1,500 nodes, and C = 3 hidden values (2 for two classes), so that only the first C classes occur. Mean
    degree as published, up to 40 (one graph: 16). Noise fills the columns that carry nothing. Without published
    statistics: 300 graphs of about 30 nodes, undirected; without edges: 4 a node, k = 8 among points. Where features
    tell fewer than 4 symbols apart (vocabularies of 1 to 3), or are derived, pendant nodes show the values: a model
    must then hear of degrees.

    Args:
        record: the data set; ``features`` must be known.
        seed: together with the record's key it decides everything; no global generator is used or moved.
        featurize: computes the features of nodes from their graph, for sets without features of their own.

    Raises:
        ValueError: the record has no ``features``, or no node features and ``featurize`` is None.
    """
    rng = np.random.default_rng([seed, zlib.crc32(record.key.encode())])
    plan = Plan.of(record, derived=featurize is not None)
    labels = Labels(rng, record.task_type, plan.values, record.features.classes)
    author = _Author(rng, record, plan, labels, featurize)
    if record.level == "node":
        return GraphDataset([author.divided()])
    cells = rng.permutation(plan.graphs) % plan.values**2  # each pair of values as often as any other
    graphs = [author.graph(int(cell // plan.values), int(cell % plan.values)) for cell in cells]
    first, last = (round(bound * len(graphs)) for bound in BOUNDS[1:3])
    order = rng.permutation(len(graphs))
    return GraphDataset(graphs, [np.sort(part) for part in np.split(order, [first, last])])


@dataclass(frozen=True)
class _Author:
    """Writes the graphs of one sample."""

    rng: np.random.Generator
    record: DatasetRecord
    plan: Plan
    labels: Labels
    featurize: Callable[[Data], Data] | None

    def graph(self, value: int, beacon: int) -> Data:
        """Return one of many graphs, whose majority and beacon carry these values."""
        plan, rng = self.plan, self.rng
        nodes = round(plan.nodes * rng.uniform(1 - VARIED, 1 + VARIED))
        shape = points(nodes, plan.neighbors + 1) if plan.neighbors else tailed(rng, nodes, self._edges(nodes))
        own = rng.permutation(shape.num_nodes) % plan.values
        if self.record.level == "graph":
            own = np.where(shape.body & (rng.random(len(own)) < AGREE), value, own)
        graph, owner = self._finished(shape, own, np.array([beacon]))
        if self.record.level == "link":
            graph.edge_label_index, graph.edge_label = pairs(rng, own[owner], beacon, plan.values)
        else:
            shown = np.array([value]) if self.record.level == "graph" else own[owner]
            graph.y = self.labels((shown + beacon) % plan.values)
        return graph

    def divided(self) -> Data:
        """Return the one graph of a sample whose nodes are divided."""
        plan, rng = self.plan, self.rng
        shape = clusters(rng, plan.nodes, self._edges(plan.nodes))
        units = len(shape.beacon)
        beacon = rng.permutation(units) % plan.values
        # The arms differ from the leaves, and leaves not among themselves: a mixture would give units away.
        graph, owner = self._finished(shape, np.minimum(shape.body, plan.values - 1), beacon)
        unit = shape.unit[owner]
        graph.y = self.labels(beacon[unit])
        place = rng.permutation(units)[unit] / units
        for split, low, high in zip(SPLITS, BOUNDS, BOUNDS[1:], strict=False):
            graph[f"{split}_mask"] = torch.from_numpy((low <= place) & (place < high))
        return graph

    def _finished(self, shape: Shape, own: np.ndarray, beacon: np.ndarray) -> tuple[Data, np.ndarray]:
        """Return the graph without labels, and for each of its nodes the one of ``shape`` that it belongs to."""
        symbols, owner = own.copy(), np.arange(shape.num_nodes)
        symbols[shape.beacon] = self.plan.values + beacon
        if self.plan.carrier == "structure":
            shape, owner = with_pendants(shape, pendants(symbols, self.plan.values))
        derived = self.featurize is not None
        graph = dressed(self.rng, self.record.features, self.plan, shape, symbols[owner], derived)
        if derived:
            graph = self.featurize(graph)
            graph.num_nodes = None
        return graph, owner

    def _edges(self, nodes: int) -> int:
        """Return how many edges to draw, before pendant nodes bring one each."""
        pendant = self.plan.pendants
        return round(self.plan.degree * (nodes + pendant) / (1 if self.plan.directed else 2)) - pendant


VALUES = 3  # hidden values: few enough that 60 training graphs show every pair of them several times
MAX_GRAPHS, MIN_GRAPHS = 300, 30
MAX_NODES, MIN_NODES = 60, 12
MAX_NODES_OF_ONE, MIN_NODES_OF_ONE = 1500, 60
MAX_DEGREE = 40
MAX_DEGREE_OF_ONE = 16  # a landmark is 3 hops away there: more neighbours drown what comes from it
MAX_EDGES = 400_000  # of all graphs together: an epoch then takes about a second
UNKNOWN = Statistics(graphs=MAX_GRAPHS, mean_nodes=30)  # for a record that says nothing of its size
UNKNOWN_DEGREE, UNKNOWN_NEIGHBORS = 4.0, 8.0


@dataclass(frozen=True)
class Plan:
    """Size and carrier of a sample.

    Args:
        graphs: number of graphs.
        nodes: mean number of nodes, before pendant ones are added.
        pendants: mean number of pendant nodes.
        degree: edges for each node as they are stored.
        directed: an edge is stored in one direction only.
        neighbors: k of the k-nearest-neighbour graph; 0 where edges are drawn.
        values: number C of hidden values; classes beyond them do not occur.
        carrier: what shows the hidden values: "features"; "positions", if no other column is left; or "structure",
            as pendant nodes, if features are derived from the edges or distinguish fewer than 4 nodes.
    """

    graphs: int
    nodes: int
    pendants: int
    degree: float
    directed: bool
    neighbors: int
    values: int
    carrier: str

    @classmethod
    def of(cls, record: DatasetRecord, derived: bool) -> Plan:
        """Read a record; ``derived``: its node features will be computed from the edges.

        Raises:
            ValueError: the record does not say what its features look like, or that nodes have none.
        """
        features, known, one = record.features, record.statistics or UNKNOWN, record.level == "node"
        if features is None:
            raise InputError(f"{record.title}: a sample needs its features: give the record features=Features(...)")
        if not features.node and not derived:
            raise InputError(f"{record.title}: nodes have no features: call make_sample with featurize=<transform>")
        cloud = features.positions > 0 and not one
        directed = cloud or bool(known.directed)
        unknown = UNKNOWN_NEIGHBORS if cloud else UNKNOWN_DEGREE
        degree = unknown if known.mean_edges is None else known.mean_edges / known.mean_nodes
        degree *= 2 if known.edges_once and not directed else 1
        degree = min(MAX_DEGREE_OF_ONE if one else MAX_DEGREE, degree)
        neighbors = max(1, round(degree)) if cloud else 0
        carrier = _carrier(features, derived)
        values = _values(record, carrier)
        low, high = (MIN_NODES_OF_ONE, MAX_NODES_OF_ONE) if one else (MIN_NODES, MAX_NODES)
        # A beacon in a point cloud has neighbors + 1 points to itself, which should be a small part of the graph.
        nodes = max(round(min(max(known.mean_nodes, low), high)), 4 * (neighbors + 1) if cloud else 0)
        graphs = 1 if one else max(MIN_GRAPHS, min(MAX_GRAPHS, known.graphs, int(MAX_EDGES / (degree * nodes))))
        inner = _without_pendants(nodes, values, one) if carrier == "structure" else nodes
        return cls(graphs, inner, nodes - inner, degree, directed, neighbors, values, carrier)


def _carrier(features: Features, derived: bool) -> str:
    if derived or not features.node:
        telling = False
    elif isinstance(features.node, int):
        telling = free_columns(features) > 0
    else:
        telling = max(features.node) >= 4  # two values of ordinary nodes, two of beacons
    return "features" if telling else "positions" if features.positions else "structure"


def _values(record: DatasetRecord, carrier: str) -> int:
    features = record.features
    most = [VALUES]
    if record.task_type == "classification":
        most.append(features.classes)
    if carrier == "features" and not isinstance(features.node, int):
        most.append(max(features.node) // 2)
    return max(1, min(most))


def _without_pendants(nodes: int, values: int, one: bool) -> int:
    """Return how many nodes to start from, so that about ``nodes`` are there with the pendant ones."""
    of_beacon = BEACON_MIN + BEACON_STEP * (values - 1) / 2
    if one:  # each leaf has one
        return round(nodes * UNIT / (UNIT + LEAVES + of_beacon))
    return max(8, round((nodes - of_beacon) / (1 + (values - 1) / 2)))
