"""Long-range data sets, made by a seed without files: recall on rings, road networks, shapes of points.

- recall: queries ask for the value of a key with the same code, wherever it is in the graph. After the multi-query
  associative recall of Arora et al., Zoology: Measuring and Improving Recall in Efficient Language Models, ICLR 2024
  (arXiv 2312.04927), from sequences to graphs.
- roads: nearly planar grids in the place of cities, with the labels of Liang et al., Towards Quantifying Long-Range
  Interactions in Graph Machine Learning, 2025 (City-Networks), so that the task of the k-MIP paper's table 13 fits on a
  CPU.
- shapes: boxes, cylinders and spheres, whose stems differ by what they carry: the task of the k-MIP paper's
  table 3 (part segmentation of ShapeNet-Part) in small.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import scipy
import torch
from torch_geometric.data import Data
from torch_geometric.utils import index_to_mask

from graphgps_kmip.data.dataset import SPLITS, GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, Source, Statistics
from graphgps_kmip.data.sets.city_networks import NUM_FREQUENCIES, encode_coordinates
from graphgps_kmip.encoding.knn import KNNGraph

VALUES = 4  # classes, balanced: a guess is right in 25 % of the queries
# Nodes of a graph -> signs of a code. There are 2^signs codes, at least 2 for each of the N / 2 keys of a graph.
CODE_LENGTHS = {32: 6, 64: 10, 128: 10, 256: 10, 512: 12, 1024: 12, 2048: 12, 4096: 12}
RECALL_SIZES, SIZES_OF_LARGE, LARGE = (240, 60, 120), (160, 40, 80), 512  # graphs that train, validate and test
SAMPLE_SIZES = (18, 6, 6)


def load_recall(_root: str = "", *, nodes: int, sizes: tuple[int, int, int], seed: int = 0) -> GraphDataset:
    """Return rings of ``nodes`` nodes, those that train first; the same graphs and split in every run.

    Args:
        nodes: nodes N of each graph, half of them keys; a key of `CODE_LENGTHS`.
        sizes: number of graphs that train, validate and test.
        seed: of the graphs, which are drawn one after the other from a single generator.

    Shapes of a graph, see `draw_graph`: x (N, 1 + signs + 4), edge_index (2, 2 N), y (N,), three masks (N,).
    """
    graphs = _draw_rings(nodes, sum(sizes), seed)
    return GraphDataset(graphs, torch.arange(len(graphs)).split(list(sizes)))


@cache  # further seeds of an experiment in one process need not draw them again
def _draw_rings(nodes: int, graphs: int, seed: int) -> tuple[Data, ...]:
    rng = np.random.default_rng([seed, nodes])
    return tuple(draw_graph(rng, nodes, CODE_LENGTHS[nodes]) for _ in range(graphs))


def draw_graph(rng: np.random.Generator, nodes: int, signs: int) -> Data:
    """Draw a ring of N nodes in random order: N / 2 keys of distinct codes, N / 2 queries of the code of a random key.

    ``x`` is 1 for a key and 0 for a query, the code as ``signs`` numbers -1 or 1, and the value of a key as one-hot
    vector of 4 (0 for a query). ``y`` is the value of a node's key: its own for a key, and for a query that of the key
    with its code. ``train_mask``, ``val_mask`` and ``test_mask`` are the queries: the head ``node`` predicts these
    alone, whole graphs are divided into the three parts.
    """
    half = nodes // 2
    codes = rng.choice(2**signs, half, replace=False)
    values = rng.integers(VALUES, size=half)
    query_keys = rng.integers(half, size=nodes - half)  # the key of each query
    owner = np.concatenate([np.arange(half), query_keys])  # node -> its key
    is_key = np.arange(nodes) < half
    order = rng.permutation(nodes)
    owner, is_key = owner[order], is_key[order]
    code = 2 * (codes[owner, None] >> np.arange(signs) & 1) - 1
    shown = (values[owner, None] == np.arange(VALUES)) & is_key[:, None]
    x = torch.from_numpy(np.concatenate([is_key[:, None], code, shown], axis=1)).float()
    node = torch.arange(nodes)
    following = (node + 1) % nodes
    edges = torch.stack([torch.cat([node, following]), torch.cat([following, node])])
    queries = torch.from_numpy(~is_key)
    masks = {f"{split}_mask": queries for split in SPLITS}
    return Data(x=x, edge_index=edges, y=torch.from_numpy(values[owner]), **masks)


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
    city (`_move_junctions`): in an even grid the labels are close to noise.

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


POINTS, NEIGHBORS = 512, 8
SHAPE_SIZES = (200, 50, 100)  # clouds that train, validate and test
# Places of the stems on a plate of side 2: one, two at its edges, a row of three, one at each corner.
LAYOUTS = (
    np.array([[0.0, 0.0]]),
    np.array([[-0.7, 0.0], [0.7, 0.0]]),
    np.array([[-0.7, 0.0], [0.0, 0.0], [0.7, 0.0]]),
    np.array([[-0.7, -0.7], [-0.7, 0.7], [0.7, -0.7], [0.7, 0.7]]),
)
PARTS = ("plate", "stem of a box", "stem of a cylinder", "stem of a sphere", "box", "cylinder", "sphere")
HEADS = 3
PLATE_SHARE, STEM_SHARE = 0.25, 0.375  # of the points; the rest are those of heads
PLATE, THICKNESS, RADIUS, HEIGHT, HEAD = 1.0, 0.1, 0.04, 2.0, 0.25  # half a side, height; of stems; half a head's size
NOISE = 0.01


def load_shapes(_root: str = "", *, sizes: tuple[int, int, int], points: int = POINTS, seed: int = 0) -> GraphDataset:
    """Return the clouds, those that train first; the same in every run.

    Args:
        sizes: number of clouds that train, validate and test.
        points: number N of points of a cloud.
        seed: of the clouds, which are drawn one after the other from a single generator.

    Shapes of a graph, see `draw_shape`: x (N, 6), pos (N, 3), edge_index (2, 8 N), y (N,).
    """
    graphs = _draw_shapes(sum(sizes), points, seed)
    return GraphDataset(graphs, torch.arange(len(graphs)).split(list(sizes)))


@cache  # further seeds of an experiment in one process need not draw them again
def _draw_shapes(number: int, points: int, seed: int) -> tuple[Data, ...]:
    rng, knn = np.random.default_rng([seed, points]), KNNGraph(NEIGHBORS, num_workers=1)
    return tuple(knn(draw_shape(rng, points)) for _ in range(number))


def draw_shape(rng: np.random.Generator, points: int = POINTS) -> Data:
    """Draw a plate with one to four stems, each of which carries a head: a box, a cylinder or a sphere, at random.

    Stems are alike: the part of a stem's points is given by the head of this stem, many hops away, not by the others.
    ``y`` is the number of a part in `PARTS`, ``x`` is (normal, position). The cloud is turned about the vertical axis,
    scaled by 0.8 to 1.25, and each position has Gaussian noise of 0.01; points are in random order.
    """
    places = LAYOUTS[rng.integers(len(LAYOUTS))]
    heads = rng.integers(HEADS, size=len(places))
    owner = rng.permutation(points) % len(places)  # the stem of a point of a stem or head
    draw = rng.random(points)
    is_stem = (draw >= PLATE_SHARE) & (draw < PLATE_SHARE + STEM_SHARE)
    is_head = draw >= PLATE_SHARE + STEM_SHARE
    normal, position = _box(rng, points, (PLATE, PLATE, THICKNESS / 2))
    label = np.zeros(points, dtype=np.int64)
    for stem, (place, head) in enumerate(zip(places, heads, strict=True)):
        for part, surface, middle in (
            (is_stem, partial(_cylinder, radius=RADIUS, half=HEIGHT / 2, ends=False), HEIGHT / 2),
            (is_head, SURFACES[head], HEIGHT + HEAD),
        ):
            here = part & (owner == stem)
            normal[here], position[here] = surface(rng, int(here.sum()))
            position[here] += [*place, middle + THICKNESS / 2]
            label[here] = 1 + head + (HEADS if part is is_head else 0)
    angle = rng.uniform(0, 2 * np.pi)
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    normal, position = normal @ turn, position @ turn * rng.uniform(0.8, 1.25)
    position += rng.normal(scale=NOISE, size=position.shape)
    x = torch.from_numpy(np.concatenate([normal, position], axis=1)).float()
    return Data(x=x, pos=x[:, 3:].clone(), y=torch.from_numpy(label))


Points = tuple[np.ndarray, np.ndarray]  # normals and positions on a surface around the origin, (N, 3) each


def _box(rng: np.random.Generator, number: int, half: tuple[float, float, float]) -> Points:
    """Draw points on the six faces of a box, as many on each as its area is large."""
    sides = np.array(half)
    axis = rng.choice(3, number, p=(area := sides.prod() / sides) / area.sum())
    normal = np.zeros((number, 3))
    normal[np.arange(number), axis] = rng.choice([-1.0, 1.0], number)
    position = np.where(normal == 0, rng.uniform(-1, 1, (number, 3)), normal) * sides
    return normal, position


def _cylinder(rng: np.random.Generator, number: int, radius: float, half: float, ends: bool = True) -> Points:
    """Draw points on the side of an upright cylinder, and on its two ends."""
    angle, height = rng.uniform(0, 2 * np.pi, number), rng.uniform(-1, 1, number)
    outwards = np.stack([np.cos(angle), np.sin(angle), np.zeros(number)], axis=1)
    position = outwards * radius + height[:, None] * [0, 0, half]
    if not ends:
        return outwards, position
    at_end = rng.random(number) < radius / (radius + 2 * half)  # 2 pi r^2 of 2 pi r (r + 2 half)
    upwards = np.sign(height)[:, None] * [0, 0, 1.0]
    end = outwards * radius * np.sqrt(rng.random(number))[:, None] + upwards * half
    return np.where(at_end[:, None], upwards, outwards), np.where(at_end[:, None], end, position)


def _sphere(rng: np.random.Generator, number: int, radius: float) -> Points:
    normal = rng.normal(size=(number, 3))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    return normal, normal * radius


SURFACES = (
    partial(_box, half=(HEAD, HEAD, HEAD)),
    partial(_cylinder, radius=HEAD, half=HEAD),
    partial(_sphere, radius=HEAD),
)


def _record(
    name: str,
    load: Callable[..., GraphDataset],
    sample: dict[str, Any],
    split: str,
    summary: str,
    features: Features,
    statistics: Statistics,
    citation: str,
    **facts: Any,
) -> DatasetRecord:
    """Return the record; ``sample`` holds the arguments of ``load`` for a small stand-in."""
    usual = {"level": "inductive_node", "metric": "accuracy", "loss": "cross_entropy"}
    return DatasetRecord(
        format="LongRange",
        name=name,
        title=name,
        load=load,
        task_type="classification",
        split=split,
        summary=f"{summary}; no download",
        features=features,
        statistics=statistics,
        source=Source(citation, "MIT, as this package"),
        sample=lambda record, seed: load(**sample, seed=seed + 1),  # noqa: ARG005
        **usual | facts,
    )


def _recall(nodes: int, signs: int) -> DatasetRecord:
    sizes = RECALL_SIZES if nodes < LARGE else SIZES_OF_LARGE
    return _record(
        f"recall-{nodes}",
        partial(load_recall, nodes=nodes, sizes=sizes),
        {"sizes": SAMPLE_SIZES},
        f"{' / '.join(map(str, sizes))} graphs, the same in every run; gnn.head node scores the queries alone",
        f"associative recall on rings of {nodes:,} nodes: queries ask for the values of keys",
        Features(node=1 + signs + VALUES, classes=VALUES),
        Statistics(sum(sizes), float(nodes), 2.0 * nodes, directed=False, sizes=sizes),
        "ours, after Arora et al., Zoology: Measuring and Improving Recall in Efficient Language Models, ICLR 2024",
    )


def _roads(nodes: int, side: int) -> DatasetRecord:
    tenth, roads = nodes // 10, round((1 - REMOVED) * 2 * side * (side - 1))
    return _record(
        f"roads-{nodes}",
        partial(load_roads, side=side),
        {"side": SAMPLE_SIDE},
        "10/10/80 percent at random, the same in every run",
        f"made road network, {nodes:,} junctions; tenths of their eccentricity within 16 hops",
        Features(node=4 * NUM_FREQUENCIES + 2, classes=CLASSES),
        Statistics(1, float(nodes), float(roads), True, False, (tenth, tenth, nodes - 2 * tenth)),
        "ours, with the labels of Liang, Saez de Ocariz Borde, Sripathmanathan, Bronstein and Dong, Towards "
        "Quantifying Long-Range Interactions in Graph Machine Learning, 2025",
        level="node",
    )


SHAPES = _record(
    "shapes",
    partial(load_shapes, sizes=SHAPE_SIZES),
    {"sizes": SAMPLE_SIZES, "points": 128},
    f"{' / '.join(map(str, SHAPE_SIZES))} clouds, the same in every run",
    f"point clouds of boxes, cylinders and spheres, {len(PARTS)} parts, 8 nearest neighbours",
    Features(node=6, classes=len(PARTS), positions=3),
    Statistics(sum(SHAPE_SIZES), float(POINTS), float(POINTS * NEIGHBORS), directed=True, sizes=SHAPE_SIZES),
    "ours",
    metric="f1",
    loss="weighted_cross_entropy",
)
RECORDS = (
    *(_recall(nodes, signs) for nodes, signs in CODE_LENGTHS.items()),
    *(_roads(nodes, side) for nodes, side in SIDES.items()),
    SHAPES,
)
