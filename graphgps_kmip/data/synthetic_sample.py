"""Synthetic samples: small stand-ins for data sets, with a signal that two layers of message passing cannot read.

In every graph one node, the beacon, carries a hidden value b in 0..C-1, ordinary nodes carry values of their own; a
symbol, the value or for a beacon b + C, is written into features, positions or pendant nodes. Labels are, modulo C:

- graph: s + b, where s is the value of most nodes of the body. A random body has a tail of 5 edges that ends at the
  beacon; a point cloud has the beacon in a cluster of k + 1 points, which no edge joins to the others.
- inductive_node: own value + b, in the same graphs; link: whether the values of two nodes and b sum to 0.
- node (one graph): units with a landmark whose value is the class of its unit; most nodes are 3 hops away from it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import SPLITS, GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, Statistics
from graphgps_kmip.encoding.knn import KNNGraph
from graphgps_kmip.errors import InputError

BOUNDS = (0, 0.6, 0.8, 1)  # of training, validation and test; of all sets alike, so that each can be learned
AGREE = 0.8  # share of the nodes of a body that carry their graph's value; the others carry any
VARIED = 0.3  # sizes of graphs differ from their mean by up to this share


def make_sample(record: DatasetRecord, seed: int = 0, featurize: Callable[[Data], Data] | None = None) -> GraphDataset:
    """Return a sample that follows the schema of a record, and plants what the module's first lines say.

    It has at most 300 graphs of about 60 nodes, or one graph of at most 1,500, and C = 3 hidden values (2 for two
    classes), so that only the first C classes occur. Mean degree as published, up to 40 (one graph: 16); without
    published statistics 4, k = 8 among points. Where features tell fewer than 4 symbols apart, or are derived, pendant
    nodes show the values: a model must then hear of degrees.

    Args:
        record: the data set; ``features`` must be known.
        seed: together with the record's key it decides everything; no global generator is used or moved.
        featurize: computes the features of nodes from their graph, for sets that have none.
    """
    rng = np.random.default_rng([seed, zlib.crc32(record.key.encode())])
    plan = Plan.of(record, derived=featurize is not None)
    labels = label_table(rng, record.task_type, plan.values, record.features.classes)
    author = _Author(rng, record, plan, labels, featurize)
    if record.level == "node":
        return GraphDataset([author.divided_graph()])
    cells = rng.permutation(plan.graphs) % plan.values**2  # each pair of values as often as any other
    graphs = [author.graph(int(cell // plan.values), int(cell % plan.values)) for cell in cells]
    first, last = (round(bound * len(graphs)) for bound in BOUNDS[1:3])
    order = rng.permutation(len(graphs))
    return GraphDataset(graphs, [np.sort(part) for part in np.split(order, [first, last])])


@dataclass(frozen=True)
class _Author:
    rng: np.random.Generator
    record: DatasetRecord
    plan: Plan
    labels: Tensor  # of each hidden value
    featurize: Callable[[Data], Data] | None

    def graph(self, value: int, beacon: int) -> Data:
        plan, rng = self.plan, self.rng
        nodes = round(plan.nodes * rng.uniform(1 - VARIED, 1 + VARIED))
        if plan.neighbors:  # a point cloud without edges yet; its last points, the beacon among them, are a cluster
            body = np.arange(nodes) < nodes - (plan.neighbors + 1)
            shape = Shape(np.zeros((2, 0), int), np.array([nodes - 1]), body, np.zeros(nodes, int))
        else:
            shape = tailed(rng, nodes, self._edges(nodes))
        values = rng.permutation(len(shape.unit)) % plan.values
        if self.record.level == "graph":
            values = np.where(shape.body & (rng.random(len(values)) < AGREE), value, values)
        graph, owner = self._finish(shape, values, np.array([beacon]))
        if self.record.level == "link":
            graph.edge_label_index, graph.edge_label = pairs(rng, values[owner], beacon, plan.values)
        else:
            shown = np.array([value]) if self.record.level == "graph" else values[owner]
            graph.y = self.labels[(shown + beacon) % plan.values]
        return graph

    def divided_graph(self) -> Data:
        plan, rng = self.plan, self.rng
        shape = clusters(rng, plan.nodes, self._edges(plan.nodes))
        units = len(shape.beacon)
        beacon = rng.permutation(units) % plan.values
        # The arms differ from the leaves, and leaves not among themselves: a mixture would give units away.
        graph, owner = self._finish(shape, np.minimum(shape.body, plan.values - 1), beacon)
        unit = shape.unit[owner]
        graph.y = self.labels[beacon[unit]]
        place = rng.permutation(units)[unit] / units
        for split, low, high in zip(SPLITS, BOUNDS, BOUNDS[1:], strict=False):
            graph[f"{split}_mask"] = torch.from_numpy((low <= place) & (place < high))
        return graph

    def _finish(self, shape: Shape, values: np.ndarray, beacon: np.ndarray) -> tuple[Data, np.ndarray]:
        """Return the graph without labels, and for each of its nodes the one of ``shape`` that it belongs to."""
        symbols, owner = values.copy(), np.arange(len(shape.unit))
        symbols[shape.beacon] = self.plan.values + beacon
        if self.plan.carrier == "structure":  # as many pendant nodes as the value, at a beacon 6, 10, 14, ...
            beacon_leaves = BEACON_MIN + BEACON_STEP * (symbols - self.plan.values)
            shape, owner = with_pendants(shape, np.where(symbols < self.plan.values, symbols, beacon_leaves))
        derived = self.featurize is not None
        graph = with_features(self.rng, self.record.features, self.plan, shape, symbols[owner], derived)
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
    """Size and carrier of a sample."""

    graphs: int
    nodes: int  # mean number, before pendant ones are added
    pendants: int  # mean number
    degree: float  # edges for each node as they are stored
    directed: bool  # an edge is stored in one direction only
    neighbors: int  # k of the k-nearest-neighbour graph; 0 where edges are drawn
    values: int  # number C of hidden values; classes beyond them do not occur
    # What shows the hidden values: "features"; "positions", if no other column is left; or "structure", as pendant
    # nodes, if features are derived from the edges or distinguish fewer than 4 nodes.
    carrier: str

    @classmethod
    def of(cls, record: DatasetRecord, derived: bool) -> Plan:
        """Read a record; ``derived``: its node features will be computed from the edges."""
        features, size, single = record.features, record.statistics or UNKNOWN, record.level == "node"
        if features is None:
            raise InputError(f"{record.title}: a sample needs its features: give the record features=Features(...)")
        if not features.node and not derived:
            raise InputError(f"{record.title}: nodes have no features: call make_sample with featurize=<transform>")
        cloud = features.positions > 0 and not single
        directed = cloud or bool(size.directed)
        unknown = UNKNOWN_NEIGHBORS if cloud else UNKNOWN_DEGREE
        degree = unknown if size.mean_edges is None else size.mean_edges / size.mean_nodes
        degree *= 2 if size.edges_once and not directed else 1
        degree = min(MAX_DEGREE_OF_ONE if single else MAX_DEGREE, degree)
        neighbors = max(1, round(degree)) if cloud else 0
        carrier, values = _carrier(features, derived), VALUES
        if record.task_type == "classification":
            values = min(values, features.classes)
        if carrier == "features" and not isinstance(features.node, int):
            values = min(values, max(features.node) // 2)
        values = max(1, values)
        low, high = (MIN_NODES_OF_ONE, MAX_NODES_OF_ONE) if single else (MIN_NODES, MAX_NODES)
        # A beacon in a point cloud has neighbors + 1 points to itself, which should be a small part of the graph.
        nodes = max(round(min(max(size.mean_nodes, low), high)), 4 * (neighbors + 1) if cloud else 0)
        graphs = 1 if single else max(MIN_GRAPHS, min(MAX_GRAPHS, size.graphs, int(MAX_EDGES / (degree * nodes))))
        inner = nodes
        if carrier == "structure":  # so that about `nodes` are there with the pendant ones
            beacon_leaves = BEACON_MIN + BEACON_STEP * (values - 1) / 2
            inner = max(8, round((nodes - beacon_leaves) / (1 + (values - 1) / 2)))
            if single:  # each leaf has one
                inner = round(nodes * UNIT / (UNIT + LEAVES + beacon_leaves))
        return cls(graphs, inner, nodes - inner, degree, directed, neighbors, values, carrier)


def _carrier(features: Features, derived: bool) -> str:
    if derived or not features.node:
        is_shown = False
    elif isinstance(features.node, int):
        is_shown = _free_columns(features) > 0
    else:
        is_shown = max(features.node) >= 4  # two values of ordinary nodes, two of beacons
    return "features" if is_shown else "positions" if features.positions else "structure"


BEACON_STEP, BEACON_MIN = 4, 6  # pendant nodes that show a beacon's value in the structure
TAIL = 5  # hops from the beacon to the body: no node has both within 2 hops
LEAVES = 9  # of one landmark
UNIT = LEAVES + 3


@dataclass(frozen=True)
class Shape:
    """Nodes and edges without features."""

    edges: np.ndarray  # (2, M) source and target; an undirected edge is given once
    beacon: np.ndarray  # (U,) the node of each unit that carries its hidden value
    body: np.ndarray  # (N,) bool: far from the beacons
    unit: np.ndarray  # (N,) the part of the graph, with its own beacon, that a node belongs to


def tailed(rng: np.random.Generator, nodes: int, edges: int) -> Shape:
    """Return a random body with a tail that ends at the beacon, the last node."""
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
    """Return one connected graph of units: landmark (the beacon) - relay - hub - `LEAVES` leaves (the body)."""
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


def with_pendants(shape: Shape, counts: np.ndarray) -> tuple[Shape, np.ndarray]:
    """Hang ``counts`` new nodes on each node; also return for each node the one that it hangs on, or is."""
    parent = np.repeat(np.arange(len(shape.unit)), counts)
    owner = np.concatenate([np.arange(len(shape.unit)), parent])
    pendant = np.arange(len(shape.unit), len(owner))
    edges = np.concatenate([shape.edges, [parent, pendant]], axis=1)
    return Shape(edges, shape.beacon, shape.body[owner], shape.unit[owner]), owner


def _more_edges(rng: np.random.Generator, nodes: np.ndarray, edges: np.ndarray, number: int) -> np.ndarray:
    """Return up to ``number`` edges between ``nodes`` in random directions, none twice and none of ``edges``."""
    first, second = np.triu_indices(len(nodes), 1)
    pairs = np.stack([nodes[first], nodes[second]])
    low, high = np.sort(edges, axis=0)
    base = 1 + max(nodes.max(), high.max())
    pairs = pairs[:, ~np.isin(pairs[0] * base + pairs[1], low * base + high)]
    pairs = pairs[:, rng.permutation(pairs.shape[1])[: max(0, number)]]
    return np.where(rng.random(pairs.shape[1]) < 0.5, pairs[::-1], pairs)


TOKENS = 5  # words of a function name in ogbg-code2
POSITIVES, NEGATIVES = 4, 10  # pairs of nodes in a graph; negatives for each positive


def label_table(rng: np.random.Generator, task_type: str, values: int, classes: int) -> Tensor:
    """Draw the label of each hidden value 0..C-1, once for a data set: (C,) int64, or (C, columns).

    Classes are the values themselves; of several labels each means one value; targets are cosines of the value's
    angle, each with another phase; tokens are random. Links have labels of pairs, see `pairs`.
    """
    value, column = np.arange(values), np.arange(classes)
    table = value
    if task_type == "classification_multilabel":
        table = value[:, None] == rng.permutation(classes) % values
    elif task_type == "regression":
        table = np.cos(2 * np.pi * (value[:, None] / values + column / classes))
    elif task_type == "subtoken_prediction":
        table = rng.integers(classes, size=(values, TOKENS))
    return torch.from_numpy(table if table.dtype == np.int64 else table.astype(np.float32))


def pairs(rng: np.random.Generator, value: np.ndarray, beacon: int, values: int) -> tuple[Tensor, Tensor]:
    """Return pairs of nodes, `NEGATIVES` after each of `POSITIVES`, with the same first node; and their labels.

    A pair is positive if its values and the beacon's sum to a multiple of C. In small graphs pairs come twice.

    Shapes: value (N,) -> (2, L) int64, (L,) int64 in {0, 1}.
    """
    node = np.arange(len(value))
    linked = (value[:, None] + value + beacon) % values == 0  # (N, N)
    other = node[:, None] != node
    able = np.flatnonzero((linked & other).any(1) & (~linked & other).any(1))
    ends = []
    for first in rng.choice(able, POSITIVES):
        positive = rng.choice(np.flatnonzero(linked[first] & other[first]))
        negatives = rng.choice(np.flatnonzero(~linked[first] & other[first]), NEGATIVES)
        ends.append(np.stack([np.full(1 + NEGATIVES, first), [positive, *negatives]]))
    label = np.tile(np.arange(1 + NEGATIVES) == 0, POSITIVES)
    return torch.from_numpy(np.concatenate(ends, axis=1)), torch.from_numpy(label.astype(np.int64))


def _free_columns(features: Features) -> int:
    return features.node - features.positions if features.node >= features.positions else features.node


NOISE = 0.1  # in up to 3 columns; less in more, from which models would else learn each training node by heart
FAR = 4.0  # how much larger the code of a beacon is than that of other nodes
APART = 4.0  # distance of two cubes of width 2 along each axis: their points are nearer to each other than to others


def codes(values: int, width: int) -> np.ndarray:
    """Return the vectors of the 2C symbols, (2C, width) float32.

    Ordinary values are on the unit circle, those of beacons on a circle of radius `FAR` that is lifted by as much. In
    wider vectors 3 columns hold this, the larger the wider: a linear map hears it as loudly. One column has steps.
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


def with_features(
    rng: np.random.Generator, features: Features, plan: Plan, shape: Shape, symbols: np.ndarray, derived: bool
) -> Data:
    """Return a graph with edges, edge features, positions and, unless they are ``derived``, node features."""
    graph = Data(num_nodes=len(symbols)) if derived else Data()  # x itself tells the number, once it is there
    if features.positions:
        graph.pos = _positions(rng, features, plan, shape, symbols)
    if plan.neighbors:
        graph = KNNGraph(plan.neighbors, num_workers=1, distance=features.edge == 1)(graph)
    else:
        edges = shape.edges if plan.directed else np.concatenate([shape.edges, shape.edges[::-1]], axis=1)
        graph.edge_index = torch.from_numpy(edges[:, rng.permutation(edges.shape[1])])
    if features.edge and graph.edge_attr is None:
        if isinstance(features.edge, int):
            noise = rng.standard_normal((graph.num_edges, features.edge), dtype=np.float32)
            graph.edge_attr = torch.from_numpy(noise)
        else:
            graph.edge_attr = _categories(rng, features.edge, graph.num_edges)
    if derived:
        return graph
    if isinstance(features.node, int):
        free = _floats(rng, symbols, plan.values, _free_columns(features))
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


def _categories(
    rng: np.random.Generator, sizes: tuple[int, ...], rows: int, symbols: np.ndarray | None = None, kinds: int = 0
) -> Tensor:
    """Return (rows, columns) int64: the symbols in every column whose vocabulary holds all kinds, else noise."""
    table = rng.integers(0, np.array(sizes), (rows, len(sizes)))
    if symbols is not None:
        table[:, np.array(sizes) >= kinds] = symbols[:, None]
    return torch.from_numpy(table)
