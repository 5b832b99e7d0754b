"""PATTERN and CLUSTER regenerated: stochastic block models by the published recipe, without a download.

Dwivedi et al. 2023, "Benchmarking Graph Neural Networks", sections on PATTERN and CLUSTER and the public notebooks that
drew them. The graphs are drawn anew, from seeds of our own: they have the distribution of the published ones, and are
not the same graphs, so that scores on them stand beside printed ones under a name of their own.

Each graph is drawn when it is asked for, from a generator seeded by its number: 14,000 graphs of 6,100 edges would take
1.4 GB as lists of edges, and drawing one takes less than a training step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import overload

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, Source, Statistics

Array = np.ndarray

SEED = 2003_00982  # the number of the publication on arXiv: any fixed number does
SIZES = (5, 35)  # nodes of a community, and of a pattern: uniform, the upper bound excluded
VOCABULARY = 3  # values of a node's feature in PATTERN
PATTERNS = 100  # different patterns
PER_PATTERN = (100, 20, 20)  # graphs of each that train, validate and test


@dataclass(frozen=True)
class BlockModel:
    """Numbers of a stochastic block model.

    Args:
        communities (int): Number of communities.
        inside (float): Probability of an edge between two nodes of one community.
        between (float): Probability of an edge between nodes of two communities.
    """

    communities: int
    inside: float
    between: float


PATTERN = BlockModel(communities=5, inside=0.5, between=0.35)
PATTERN_EDGES = (0.5, 0.5)  # inside the pattern; from a node of it to any other node
CLUSTER = BlockModel(communities=6, inside=0.55, between=0.25)


class DrawnGraphs(Sequence[Data]):
    """Graphs that are drawn when they are asked for, each from a seed of its own.

    Args:
        draw (callable): Number of the graph and its generator -> graph.
        kind (int): First number of the seed, another one for each data set.
        length (int): Number of graphs.
    """

    def __init__(self, draw: Callable[[int, np.random.Generator], Data], kind: int, length: int) -> None:
        self.draw, self.kind, self.length = draw, kind, length

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, number: int) -> Data: ...
    @overload
    def __getitem__(self, number: slice) -> list[Data]: ...
    def __getitem__(self, number: int | slice) -> Data | list[Data]:
        """Draw one graph, the same at every call."""
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(self.length))]
        number = range(self.length)[number]
        return self.draw(number, np.random.default_rng((SEED, self.kind, number)))


def load_pattern(_root: str = "") -> GraphDataset:
    """Return 14,000 graphs of five communities and a pattern, whose nodes are to be found (``y`` 1).

    Of each of 100 random patterns, whose features are fixed with it, 100 graphs train, 20 validate and 20 test, as in
    the public recipe. ``x`` is one of three values, one-hot.
    """
    bounds = np.cumsum((0, *(PATTERNS * count for count in PER_PATTERN)))
    return GraphDataset(DrawnGraphs(draw_pattern, 0, int(bounds[-1])), _parts(bounds))


def load_cluster(_root: str = "") -> GraphDataset:
    """Return 12,000 graphs of six communities; one node in each shows its community, those of the others are asked for.

    ``x`` is one-hot of 0 (not shown) or 1 to 6.
    """
    bounds = np.cumsum((0, 10_000, 1_000, 1_000))
    return GraphDataset(DrawnGraphs(draw_cluster, 1, int(bounds[-1])), _parts(bounds))


def draw_pattern(number: int, generator: np.random.Generator) -> Data:
    """Draw a graph of PATTERN."""
    start = np.searchsorted(np.cumsum([PATTERNS * count for count in PER_PATTERN]), number, side="right")
    first = sum(PATTERNS * count for count in PER_PATTERN[:start])
    pattern, features = _pattern((number - first) // PER_PATTERN[start])
    community = _communities(PATTERN, generator)
    nodes, size = len(community), len(pattern)
    adjacency = np.zeros((nodes + size,) * 2, bool)
    adjacency[:nodes, :nodes] = _block_edges(community, PATTERN, generator)
    adjacency[nodes:, nodes:] = pattern
    adjacency[nodes:, :nodes] = generator.random((size, nodes)) < PATTERN_EDGES[1]
    values = np.concatenate([generator.integers(VOCABULARY, size=nodes), features])
    labels = np.arange(nodes + size) >= nodes
    order = generator.permutation(nodes + size)
    return _graph(adjacency | adjacency.T, values, labels, order, VOCABULARY)


def draw_cluster(number: int, generator: np.random.Generator) -> Data:  # noqa: ARG001 (the seed is the number's)
    """Draw a graph of CLUSTER."""
    community = _communities(CLUSTER, generator)
    order = generator.permutation(len(community))
    shown = np.zeros(len(community), int)
    for one in range(CLUSTER.communities):
        shown[generator.choice(np.flatnonzero(community == one))] = one + 1
    adjacency = _block_edges(community, CLUSTER, generator)
    return _graph(adjacency, shown, community, order, CLUSTER.communities + 1)


@cache
def _pattern(number: int) -> tuple[Array, Array]:
    """Return the edges inside a pattern and the features of its nodes: the same in all graphs that have it."""
    generator = np.random.default_rng((SEED, 2, number))
    size = int(generator.integers(*SIZES))
    upper = np.triu(generator.random((size, size)) < PATTERN_EDGES[0], 1)
    return upper | upper.T, generator.integers(VOCABULARY, size=size)


def _communities(model: BlockModel, generator: np.random.Generator) -> Array:
    """Return the community of each node, in order."""
    return np.repeat(np.arange(model.communities), generator.integers(*SIZES, size=model.communities))


def _block_edges(community: Array, model: BlockModel, generator: np.random.Generator) -> Array:
    """Return a symmetric adjacency matrix without loops."""
    chance = np.where(community[:, None] == community, model.inside, model.between)
    upper = np.triu(generator.random(chance.shape) < chance, 1)
    return upper | upper.T


def _graph(adjacency: Array, values: Array, labels: Array, order: Array, width: int) -> Data:
    edges = torch.from_numpy(np.stack(np.nonzero(adjacency[order][:, order])))
    x = one_hot(torch.from_numpy(values[order]).long(), width).float()
    return Data(x=x, edge_index=edges, y=torch.from_numpy(labels[order]).long())


def _parts(bounds: Array) -> list[Tensor]:
    return [torch.arange(first, end) for first, end in pairwise(bounds.tolist())]


SOURCE = Source(
    citation="Dwivedi, Joshi, Luu, Laurent, Bengio and Bresson, Benchmarking Graph Neural Networks, JMLR 2023",
    licence="none: drawn here by the published recipe",
    page="github.com/graphdeeplearning/benchmarking-gnns (folder data/SBMs)",
)
FACTS = {
    "format": "block-models",
    "task_type": "classification",
    "level": "inductive_node",
    "metric": "accuracy-SBM",
    "loss": "weighted_cross_entropy",
    "made_here": "regenerated",
    "source": SOURCE,
}
RECORDS = (
    DatasetRecord(
        name="PATTERN",
        title="PATTERN (regenerated)",
        load=load_pattern,
        split="10,000 / 2,000 / 2,000 graphs, drawn as the official ones",
        summary="14,000 random graphs of communities drawn here by the published recipe; no download",
        features=Features(node=3, classes=2),
        statistics=Statistics(14000, 118.9, 6098.9, directed=False, sizes=(10000, 2000, 2000)),
        **FACTS,
    ),
    DatasetRecord(
        name="CLUSTER",
        title="CLUSTER (regenerated)",
        load=load_cluster,
        split="10,000 / 1,000 / 1,000 graphs, drawn as the official ones",
        summary="12,000 random graphs of six communities drawn here by the published recipe; no download",
        features=Features(node=7, classes=6),
        statistics=Statistics(12000, 117.2, 4303.9, directed=False, sizes=(10000, 1000, 1000)),
        **FACTS,
    ),
)
