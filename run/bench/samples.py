"""Sample-data benchmark: does the planted long-range signal separate GPS with k-MIP attention from a 2-layer GCN?

  python -m run.bench.samples
  python -m run.bench.samples --only 'PascalVOC*,Cora' --seconds 20 --seeds 0,1,2

For each data set its sample is drawn and two models are trained on it, in CPU seconds of one thread, with the same
encoder of the schema, width, linear head and optimizer: a 2-layer GCN, and 3 layers of GatedGCN + k-MIP attention.
Printed is the test metric of the epoch that was best in validation, in percent (errors as they are). Training ends
early once validation is perfect. Nothing here says how a model does on the real data.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import time
from typing import Any

import torch
from torch import nn

from graphgps_kmip.attention.kmip import KMIPAttention
from graphgps_kmip.data import DatasetInfo, DatasetRecord, GraphDataset, datasets, make_loaders
from graphgps_kmip.data.dataset import SPLITS
from graphgps_kmip.data.synthetic_sample import make_sample
from graphgps_kmip.encoding.feature_encoders import ConstantEdgeEncoder, LinearEdgeEncoder, LinearNodeEncoder
from graphgps_kmip.model import FeatureEncoder, GNNLayer, GPSLayer, GPSModel, GraphHead, NodeHead
from graphgps_kmip.mpnn import GCN, GatedGCN
from graphgps_kmip.registry import entries
from graphgps_kmip.task import Task, make_task

from . import bench_records
from .harness import Row

COLUMNS = "data level seed metric gcn_test gps_test gain gcn_seconds gps_seconds gps_best_s status".split()
METRICS = entries("metric")
DIM, HEADS, KEYS, BATCH_SIZE, RATE = 32, 4, 10, 16, 3e-3
LOSSES = {"regression": "l1"}  # where the record names none
FALLBACK = {"regression": "mae", "classification_multilabel": "ap"}  # where its metric is not one of the task
MODELS = {
    "gcn": lambda: [GNNLayer(GCN(DIM), nn.ReLU) for _ in range(2)],
    "gps": lambda: [GPSLayer(DIM, GatedGCN(DIM), KMIPAttention(DIM, HEADS, k=KEYS)) for _ in range(3)],
}


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    args = bench_records.parse(
        words,
        __doc__,
        only=(str, "*", "comma-separated patterns of titles or format/name"),
        seconds=(float, 30, "CPU seconds that a model may train"),
        seeds=(str, "0", "comma-separated seeds of sample and model"),
        threads=(bench_records.positive, 1, "CPU threads"),
    )
    if not args.seconds > 0:
        raise ValueError(f"--seconds must be positive, got {args.seconds:g}")
    args.seeds = [int(seed) for seed in args.seeds.split(",")]
    return args


def main(words: list[str]) -> int:
    """Train, print, write; return the exit code."""
    args = parse(words)
    torch.set_num_threads(args.threads)
    rows = []
    for record in pick(args.only):
        for seed in args.seeds:
            row = compare(record, seed, args.seconds)
            scale = 100 if row["status"] == "ok" and METRICS[row["metric"]].traits.maximize else 1
            rows.append(row | {key: scale * row[key] for key in ("gcn_test", "gps_test", "gain") if key in row})
            print("  ".join(bench_records.number(rows[-1].get(key)) for key in COLUMNS), flush=True)
    return bench_records.save("samples", args, rows, COLUMNS)


def pick(patterns: str) -> list[DatasetRecord]:
    """Return the registered data sets that match a pattern.

    Raises:
        ValueError: a pattern matches none.
    """
    records = {}
    for pattern in patterns.split(","):
        found = [one for one in datasets().values() if any(fnmatch.fnmatch(n, pattern) for n in (one.title, one.key))]
        if not found:
            raise ValueError(f"--only {pattern}: no data set of this name")
        records |= {record.key: record for record in found}
    return list(records.values())


def compare(record: DatasetRecord, seed: int, seconds: float, epochs: float = math.inf) -> Row:
    """Return the row of one data set and seed; ``status`` says why there is no result."""
    row: Row = {"data": record.title, "key": record.key, "level": record.level, "seed": seed}
    if record.level not in ("graph", "inductive_node", "node") or record.task_type == "subtoken_prediction":
        return row | {"status": f"not compared: no linear head for {record.task_type} at level {record.level}"}
    try:
        dataset = record.sample(record, seed) if record.sample else make_sample(record, seed)
        found = {kind: _train(kind, record, dataset, seed, seconds, epochs) for kind in MODELS}
    except ValueError as error:
        return row | {"status": f"not compared: {error}"}
    metric, gain = found["gps"]["metric"], found["gps"]["test"] - found["gcn"]["test"]
    flat = {f"{kind}_{name}": value for kind, one in found.items() for name, value in one.items() if name != "metric"}
    return row | {"status": "ok", "metric": metric, "gain": gain if METRICS[metric].traits.maximize else -gain} | flat


class SumOfTypes(nn.Module):
    """Add up learned vectors, one for each categorical column of ``batch[key]``."""

    def __init__(self, key: str, sizes: tuple[int, ...], dim: int) -> None:
        super().__init__()
        self.key, self.tables = key, nn.ModuleList(nn.Embedding(size, dim) for size in sizes)

    def forward(self, batch: Any) -> Any:
        """Replace the features by vectors (rows, dim)."""
        batch[self.key] = sum(table(column) for table, column in zip(self.tables, batch[self.key].T, strict=True))
        return batch


def _model(kind: str, record: DatasetRecord, info: DatasetInfo, dim_out: int) -> GPSModel:
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


def _task(record: DatasetRecord, info: DatasetInfo) -> Task:
    """Return the record's task, judged by the metric of its publications where the task has that metric."""
    loss = record.loss or LOSSES.get(record.task_type, "cross_entropy")
    metrics = make_task(record.task_type, info.dim_out, loss).metrics
    best = record.metric if record.metric in metrics else FALLBACK.get(record.task_type, "accuracy")
    return make_task(
        record.task_type, info.dim_out, loss, best, "argmax" if METRICS[best].traits.maximize else "argmin"
    )


def _train(
    kind: str, record: DatasetRecord, dataset: GraphDataset, seed: int, seconds: float, epochs: float
) -> dict[str, Any]:
    """Train for some CPU seconds, or epochs; return the test metric, the epochs, and the seconds up to the best one."""
    info = DatasetInfo.of(dataset, record)
    task = _task(record, info)
    torch.manual_seed(seed)
    model = _model(kind, record, info, 1 if task.name == "classification_binary" else info.dim_out)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    loaders = dict(zip(SPLITS, make_loaders(dataset, record.level, BATCH_SIZE, seed), strict=True))
    start, epoch, best, row = time.process_time(), 0, float("-inf"), {"metric": task.metric_best}
    while time.process_time() - start < seconds and epoch < epochs and best < 1:
        loaders["train"].set_epoch(epoch)
        model.train()
        for batch in loaders["train"]:
            batch.split = "train"
            total, weight = task.loss(*model(batch))
            optimizer.zero_grad()
            (total / weight).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        value = _score(model, loaders["val"], "val", task)
        epoch += 1
        if (value if task.maximize else -value) > best:
            best = value if task.maximize else -value
            row |= {"test": _score(model, loaders["test"], "test", task), "best_s": time.process_time() - start}
    return row | {"epochs": epoch, "seconds": time.process_time() - start}


@torch.no_grad()
def _score(model: nn.Module, loader: Any, split: str, task: Task) -> float:
    model.eval()
    results = []
    for batch in loader:
        batch.split = split
        results.append(model(batch))
    pred, true = (torch.cat(parts) for parts in zip(*results, strict=True))
    return task.metrics[task.metric_best](task.score(pred), true)


if __name__ == "__main__":
    bench_records.run(main)
