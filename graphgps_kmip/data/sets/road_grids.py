"""Road networks made by a seed, with City-Networks' labels: deciles of the eccentricity within 16 hops.

After Liang et al., Towards Quantifying Long-Range Interactions in Graph Machine Learning, 2025 (City-Networks): nearly
planar grids in the place of cities, so that the task of the k-MIP paper's table 13 fits on a CPU. There are no files.
"""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import scipy
import torch
from torch_geometric.data import Data
from torch_geometric.utils import index_to_mask

from graphgps_kmip.data.dataset import SPLITS, GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, Source, Statistics
from graphgps_kmip.data.sets.city_networks import NUM_FREQUENCIES, encode_coordinates

HOPS, CLASSES = 16, 10
SIDES = {10_000: 100, 40_000: 200}  # junctions -> those of a side of the grid
SAMPLE_SIDE = 24
REMOVED = 0.3  # share of the grid's roads: 2.8 roads meet at a junction, 2.7 in London and 3.2 in Paris
JITTER = 0.3  # of the distance between neighbouring junctions of the grid
# Blocks are small in some quarters and large in others: sine waves of 33 to 100 blocks' length move the junctions.
WAVES, WAVE_NUMBERS, STRETCH = 8, (0.01, 0.03), 0.4  # STRETCH: standard deviation of the relative change of lengths
SOURCES = 256  # junctions whose neighbourhoods are searched at once


def load_roads(_root: str = "", *, side: int, seed: int = 0) -> GraphDataset:
    """Return one road network of side^2 junctions; the same graph and split in every run.

    Shapes, with N = side^2: x (N, 34), edge_index (2, E) both ways, y (N,), three masks (N,).
    """
    return GraphDataset([_draw_network(side, seed)])


@cache  # further seeds of an experiment in one process need not compute the labels again
def _draw_network(side: int, seed: int) -> Data:
    return draw_network(np.random.default_rng([seed, side]), side)


def draw_network(rng: np.random.Generator, side: int) -> Data:
    """Draw a grid of N = side^2 junctions at uneven distances, and remove 30 % of its roads, at random.

    A random spanning tree stays, so that the network is connected. Distances differ from quarter to quarter, as in a
    city (`_move_junctions`): in an even grid the labels are close to noise, 22 % of the neighbours share theirs.

    ``y`` is the decile of the eccentricity within 16 hops. ``x`` is (encoded coordinates, number of roads, their mean
    length), scaled as City-Networks' features are in the k-MIP paper (`encode_coordinates`). Random 10 % of the
    junctions train, 10 % validate and 80 % test.
    """
    row, column = np.divmod(np.arange(side**2), side)
    place = _move_junctions(rng, np.stack([column, row], axis=1).astype(float))
    roads = _remove_roads(rng, _grid_roads(side), side**2)
    length = np.linalg.norm(place[roads[0]] - place[roads[1]], axis=1)
    lengths = scipy.sparse.csr_array((length, tuple(roads)), shape=(side**2, side**2))
    lengths = (lengths + lengths.T).tocsr()
    degree = np.diff(lengths.indptr)
    facts = np.stack([degree, lengths.sum(axis=1) / degree], axis=1)
    tenth = side**2 // 10
    order = torch.from_numpy(rng.permutation(side**2)).split([tenth, tenth, side**2 - 2 * tenth])
    masks = {f"{split}_mask": index_to_mask(part, side**2) for split, part in zip(SPLITS, order, strict=True)}
    edges = lengths.tocoo()
    return Data(
        x=encode_coordinates(torch.from_numpy(np.concatenate([place, facts], axis=1)), masks["train_mask"]),
        edge_index=torch.from_numpy(np.stack(edges.coords).astype(np.int64)),
        y=torch.from_numpy(rank_deciles(measure_eccentricity(lengths))),
        **masks,
    )


def _move_junctions(rng: np.random.Generator, place: np.ndarray) -> np.ndarray:
    """Add a random displacement that varies smoothly, and jitter: (N, 2) -> (N, 2), unit: a block of the grid."""
    direction = rng.uniform(0, 2 * np.pi, WAVES)
    wave = 2 * np.pi * rng.uniform(*WAVE_NUMBERS, WAVES) * np.stack([np.cos(direction), np.sin(direction)])  # (2, W)
    phase = place @ wave + rng.uniform(0, 2 * np.pi, WAVES)
    size = rng.normal(size=(WAVES, 2)) * STRETCH * (2 / WAVES) ** 0.5 / np.linalg.norm(wave, axis=0)[:, None]
    return place + np.sin(phase) @ size + rng.uniform(-JITTER, JITTER, place.shape)


def _grid_roads(side: int) -> np.ndarray:
    junction = np.arange(side**2).reshape(side, side)
    across, along = (junction[:, :-1], junction[:, 1:]), (junction[:-1], junction[1:])
    return np.stack([np.concatenate([a.ravel(), b.ravel()]) for a, b in zip(across, along, strict=True)])  # (2, E)


def _remove_roads(rng: np.random.Generator, roads: np.ndarray, nodes: int) -> np.ndarray:
    """Return 70 % of the roads: the tree of minimum weights, for random weights, and those of least weight."""
    number = roads.shape[1]
    weight = rng.permutation(number) + 1.0
    tree = scipy.sparse.csgraph.minimum_spanning_tree(
        scipy.sparse.csr_array((weight, tuple(roads)), shape=(nodes, nodes))
    ).data
    weight[np.isin(weight, tree)] = 0
    return roads[:, np.sort(np.argsort(weight, kind="stable")[: round((1 - REMOVED) * number)])]


def measure_eccentricity(lengths: scipy.sparse.csr_array, hops: int = HOPS) -> np.ndarray:
    """Return the eccentricity of each node within ``hops`` hops, as City-Networks defines it.

    It is the length of the longest of the shortest paths from a node to the nodes within ``hops`` hops (a power of 2)
    of it, in the subgraph of these nodes. ``lengths`` are those of edges, (N, N), symmetric -> (N,) float64.
    """
    nodes = lengths.shape[0]
    near = (lengths != 0).astype(np.int8) + scipy.sparse.eye_array(nodes, dtype=np.int8, format="csr")
    for _ in range(hops.bit_length() - 1):
        near = (near @ near).astype(bool).astype(np.int8)
    near.sort_indices()
    return np.concatenate([_longest_paths(near, lengths, first) for first in range(0, nodes, SOURCES)])


def _longest_paths(near: scipy.sparse.csr_array, lengths: scipy.sparse.csr_array, first: int) -> np.ndarray:
    """Return the eccentricities of nodes ``first``, ...: one search in the disjoint union of their subgraphs."""
    rows, nodes = near[first : first + SOURCES], near.shape[0]
    source = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    member = rows.indices
    # Each (source, member) is a node of the union, numbered in ascending order of this key.
    key = source * np.int64(nodes) + member
    degree = np.diff(lengths.indptr)[member]
    tail = np.repeat(np.arange(len(key)), degree)
    edge = np.arange(len(tail)) - np.repeat(degree.cumsum() - degree, degree) + lengths.indptr[member[tail]]
    neighbor = source[tail] * np.int64(nodes) + lengths.indices[edge]
    head = np.minimum(np.searchsorted(key, neighbor), len(key) - 1)
    inside = key[head] == neighbor
    union = scipy.sparse.csr_array(
        (lengths.data[edge[inside]], (tail[inside], head[inside])), shape=(len(key), len(key))
    )
    start = np.flatnonzero(member == source + first)
    distance = scipy.sparse.csgraph.dijkstra(union, indices=start, min_only=True)
    return np.maximum.reduceat(distance, rows.indptr[:-1])


def rank_deciles(values: np.ndarray) -> np.ndarray:
    """Return 0 for the tenth of least values, ..., 9 for that of the largest: (N,) -> (N,) int64."""
    return np.argsort(np.argsort(values, kind="stable"), kind="stable") * CLASSES // len(values)


def _record(nodes: int, side: int) -> DatasetRecord:
    tenth = nodes // 10
    return DatasetRecord(
        format="LongRange",
        name=f"roads-{nodes}",
        load=partial(load_roads, side=side),
        task_type="classification",
        level="node",
        title=f"roads-{nodes}",
        metric="accuracy",
        loss="cross_entropy",
        split="10/10/80 percent at random, the same in every run",
        summary=f"made road network, {nodes:,} junctions; tenths of their eccentricity within 16 hops; no download",
        features=Features(node=4 * NUM_FREQUENCIES + 2, classes=CLASSES),
        statistics=Statistics(
            1,
            float(nodes),
            float(round((1 - REMOVED) * 2 * side * (side - 1))),
            edges_once=True,
            directed=False,
            sizes=(tenth, tenth, nodes - 2 * tenth),
        ),
        source=Source(
            "ours, with the labels of Liang, Saez de Ocariz Borde, Sripathmanathan, Bronstein and Dong, Towards "
            "Quantifying Long-Range Interactions in Graph Machine Learning, 2025",
            "MIT, as this package",
        ),
        sample=lambda record, seed: load_roads(side=SAMPLE_SIDE, seed=seed + 1),  # noqa: ARG005
    )


RECORDS = tuple(_record(nodes, side) for nodes, side in SIDES.items())
