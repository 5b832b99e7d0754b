"""Synthetic shapes: point clouds of boxes, cylinders and spheres, whose stems are told apart by what they carry.

The task of the k-MIP paper's table 3 (part segmentation of ShapeNet-Part) in small: normals and positions of the points
of a surface, edges from the 8 nearest neighbours, a part for each point. Made by a seed; there are no files.
"""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import torch
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, Source, Statistics
from graphgps_kmip.encoding.knn import KNNGraph

POINTS, NEIGHBORS = 512, 8
SIZES, SAMPLE_SIZES = (200, 50, 100), (18, 6, 6)  # clouds that train, validate and test
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

    Stems are alike: the part of a stem's points is told by the head of this stem, many hops away, not by the others.
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


RECORDS = (
    DatasetRecord(
        format="LongRange",
        name="shapes",
        load=partial(load_shapes, sizes=SIZES),
        task_type="classification",
        level="inductive_node",
        title="shapes",
        metric="f1",
        loss="weighted_cross_entropy",
        split=f"{' / '.join(map(str, SIZES))} clouds, the same in every run",
        summary=f"point clouds of boxes, cylinders and spheres, {len(PARTS)} parts, 8 nearest neighbours; no download",
        features=Features(node=6, classes=len(PARTS), positions=3),
        statistics=Statistics(sum(SIZES), float(POINTS), float(POINTS * NEIGHBORS), directed=True, sizes=SIZES),
        source=Source("ours", "MIT, as this package"),
        sample=lambda record, seed: load_shapes(sizes=SAMPLE_SIZES, points=128, seed=seed + 1),  # noqa: ARG005
    ),
)
