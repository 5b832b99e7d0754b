"""The 1,797 scanned digits that scikit-learn ships, as point clouds of their inked pixels: real data, no download."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, Source, Statistics
from graphgps_kmip.data.splits import random_split
from graphgps_kmip.encoding.knn import KNNGraph

NUM_NEIGHBORS = 8


def load(_root: str = "") -> GraphDataset:
    """Return a directed 8-nearest-neighbour graph for each 8x8 image, with one stratified 60/20/20 split for all runs.

    A node is a pixel with ink: ``pos`` is the pixel's centre in the square [-1, 1]^2 (x to the right, y upwards), ``x``
    is (pos, intensity in (0, 1]), ``y`` the digit.
    """
    graphs = _graphs()
    labels = [int(graph.y) for graph in graphs]
    return GraphDataset(graphs, random_split(len(graphs), (0.6, 0.2, 0.2), seed=0, labels=labels))


@cache  # a second or two, which the further seeds of an experiment need not spend again
def _graphs() -> tuple[Data, ...]:
    from sklearn.datasets import load_digits  # takes a second or two to import

    digits = load_digits()
    knn = KNNGraph(NUM_NEIGHBORS)
    return tuple(knn(_point_cloud(image, label)) for image, label in zip(digits.images, digits.target, strict=True))


def _point_cloud(image: np.ndarray, label: int) -> Data:
    row, column = np.nonzero(image)
    # Pixel c covers [c, c + 1] of 8. These centres are exact in binary: pixels at equal distance tie exactly.
    pos = np.stack([(column + 0.5) / 4 - 1, 1 - (row + 0.5) / 4], axis=1)
    intensity = image[row, column, None] / 16
    points = torch.from_numpy(np.concatenate([pos, intensity], axis=1)).float()  # (N, 3)
    return Data(x=points, pos=points[:, :2].clone(), y=torch.tensor([label]))


RECORDS = (
    DatasetRecord(
        format="sklearn",
        name="digits",
        load=load,
        task_type="classification",
        title="digits",
        metric="accuracy",
        loss="cross_entropy",
        split="stratified 60/20/20, the same in every run",
        summary="1,797 scanned digits as point clouds with a directed 8-nearest-neighbour graph; no download",
        features=Features(node=3, classes=10, positions=2),
        statistics=Statistics(1797, 32.69, 261.48, directed=True, sizes=(1078, 359, 360)),
        source=Source(
            citation="Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI repository, 1998",
            licence="CC BY 4.0",
        ),
    ),
)
