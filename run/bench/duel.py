"""The two models that the benchmark of samples compares, and their training for some CPU seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from graphgps_kmip.attention.kmip import KMIPAttention
from graphgps_kmip.data import DatasetInfo, DatasetRecord, GraphDataset, make_loaders
from graphgps_kmip.data.dataset import SPLITS
from graphgps_kmip.encoding.feature_encoders import ConstantEdgeEncoder, LinearEdgeEncoder, LinearNodeEncoder
from graphgps_kmip.model import FeatureEncoder, GNNLayer, GPSLayer, GPSModel, GraphHead, NodeHead
from graphgps_kmip.mpnn import GCN, GatedGCN
from graphgps_kmip.registry import entries
from graphgps_kmip.task import Task, make_task

Row = dict[str, Any]

DIM, HEADS, KEYS, BATCH_SIZE, RATE = 32, 4, 10, 16, 3e-3
LOSSES = {"regression": "l1"}  # where the record names none
FALLBACK = {"regression": "mae", "classification_multilabel": "ap"}  # where its metric is not one of the task
COMPARED = ("graph", "inductive_node", "node")  # levels


class SumOfTypes(nn.Module):
    """Add up learned vectors, one for each categorical column of ``batch[key]``."""

    def __init__(self, key: str, sizes: tuple[int, ...], dim: int) -> None:
        super().__init__()
        self.key, self.tables = key, nn.ModuleList(nn.Embedding(size, dim) for size in sizes)

    def forward(self, batch: Any) -> Any:
        """Replace the features by vectors (rows, dim)."""
        batch[self.key] = sum(table(column) for table, column in zip(self.tables, batch[self.key].T, strict=True))
        return batch


MODELS: dict[str, Callable[[], list[nn.Module]]] = {
    "gcn": lambda: [GNNLayer(GCN(DIM), nn.ReLU) for _ in range(2)],
    "gps": lambda: [GPSLayer(DIM, GatedGCN(DIM), KMIPAttention(DIM, HEADS, k=KEYS)) for _ in range(3)],
}


def build(kind: str, record: DatasetRecord, info: DatasetInfo, dim_out: int) -> GPSModel:
    """Return an untrained model; ``kind`` is a row of `MODELS`."""
    features = record.features
    if isinstance(features.node, tuple) and info.dim_in == len(features.node):
        node = SumOfTypes("x", features.node, DIM)
    else:
        node = LinearNodeEncoder(info.dim_in, DIM)
    if isinstance(features.edge, tuple):
        edge = SumOfTypes("edge_attr", features.edge, DIM)
    else:
        edge = LinearEdgeEncoder(info.dim_edge, DIM) if info.dim_edge else ConstantEdgeEncoder(DIM)
    head = GraphHead(DIM, dim_out) if record.level == "graph" else NodeHead(DIM, dim_out, masked=record.level == "node")
    return GPSModel(FeatureEncoder(DIM, node, edge), MODELS[kind](), head)


def task_of(record: DatasetRecord, info: DatasetInfo) -> Task:
    """Return the record's task, judged by the metric of its publications where the task has that metric."""
    loss = record.loss or LOSSES.get(record.task_type, "cross_entropy")
    metrics = make_task(record.task_type, info.dim_out, loss).metrics
    best = record.metric if record.metric in metrics else FALLBACK.get(record.task_type, "accuracy")
    direction = "argmax" if entries("metric")[best].traits.maximize else "argmin"
    return make_task(record.task_type, info.dim_out, loss, best, direction)


def train(
    kind: str, record: DatasetRecord, dataset: GraphDataset, seed: int, seconds: float, epochs: float = math.inf
) -> Row:
    """Train for some CPU seconds, or epochs; return the test metric, the epochs, and the seconds up to the best one.

    Raises:
        ValueError: these models have no head for the level or the task.
    """
    if record.level not in COMPARED or record.task_type == "subtoken_prediction":
        raise ValueError(f"no linear head for {record.task_type} at level {record.level}")
    info = DatasetInfo.of(dataset, record)
    task = task_of(record, info)
    torch.manual_seed(seed)
    model = build(kind, record, info, 1 if task.name == "classification_binary" else info.dim_out)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    loaders = dict(zip(SPLITS, make_loaders(dataset, record.level, BATCH_SIZE, seed), strict=True))
    start, epoch, best, row = time.process_time(), 0, float("-inf"), {"metric": task.metric_best}
    while time.process_time() - start < seconds and epoch < epochs and best < 1:
        loaders["train"].set_epoch(epoch)
        _train_epoch(model, loaders["train"], task, optimizer)
        value = _judge(model, loaders["val"], "val", task)
        better = value if task.maximize else -value
        epoch += 1
        if better > best:
            best = better
            row |= {"test": _judge(model, loaders["test"], "test", task), "best_s": time.process_time() - start}
    return row | {"epochs": epoch, "seconds": time.process_time() - start}


def _train_epoch(model: nn.Module, loader: Any, task: Task, optimizer: torch.optim.Optimizer) -> None:
    model.train()
    for batch in loader:
        batch.split = "train"
        total, weight = task.loss(*model(batch))
        optimizer.zero_grad()
        (total / weight).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@torch.no_grad()
def _judge(model: nn.Module, loader: Any, split: str, task: Task) -> float:
    model.eval()
    results = []
    for batch in loader:
        batch.split = split
        results.append(model(batch))
    pred, true = (torch.cat(parts) for parts in zip(*results, strict=True))
    return task.metrics[task.metric_best](task.score(pred), true)
