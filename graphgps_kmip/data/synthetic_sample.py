"""Small synthetic stand-ins for data sets, with a planted signal that two layers of message passing cannot read.

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
from graphgps_kmip.data.dataset_record import DatasetRecord
from graphgps_kmip.data.sample_graphs import Labels, Shape, clusters, pairs, points, tailed, with_pendants
from graphgps_kmip.data.sample_payload import dressed, pendants
from graphgps_kmip.data.sample_plan import Plan

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
