"""A model, a task and loaders as small as can be, for the tests of the training loop."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import seed_everything
from torch_geometric.data import Batch, Data

from graphgps_kmip.task.losses import identity
from graphgps_kmip.task.task import Task
from graphgps_kmip.train.distributed import make_fabric
from graphgps_kmip.train.loop import train
from graphgps_kmip.train.settings import TrainSettings

DIM, CLASSES = 4, 3
TRAIN, VAL, TEST = 12, 6, 5  # graphs; in batches of 4 that is 3 + 2 + 2 batches an epoch


def make_graphs(count: int, seed: int) -> list[Data]:
    """Graphs of 1 to 5 nodes; the class is the largest of the first three mean features."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 6, (count,), generator=generator).tolist()
    features = [torch.randn(size, DIM, generator=generator) for size in sizes]
    return [Data(x=x, y=x.mean(0)[:CLASSES].argmax().view(1)) for x in features]


class ToyLoader:
    """Batches of graphs, sharded as the loop expects; with `shuffle` the order depends on the epoch alone."""

    sharded = True

    def __init__(
        self, graphs: list[Data], batch_size: int = 4, shuffle: bool = False, rank: int = 0, world: int = 1
    ) -> None:
        self.graphs, self.batch_size, self.shuffle, self.rank, self.world = graphs, batch_size, shuffle, rank, world
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        order = torch.arange(len(self.graphs))
        if self.shuffle:
            order = torch.randperm(len(self.graphs), generator=torch.Generator().manual_seed(self.epoch))
        for rows in order.split(self.batch_size):
            share = rows[self.rank :: self.world].tolist()
            batch = Batch.from_data_list([self.graphs[row] for row in share or [0]])
            if not share:
                batch.filler = True
            yield batch


class ToyModel(nn.Module):
    """Linear, ReLU, dropout, mean over the nodes of a graph, Linear; `hook(batch)` runs before each batch."""

    def __init__(self, dropout: float = 0.0, hook: Callable[[Any], None] | None = None) -> None:
        super().__init__()
        self.inner = nn.Linear(DIM, 8)
        self.outer = nn.Linear(8, CLASSES)
        self.unused = nn.Linear(1, 1)  # never gets a gradient, as the edge parameters of the last GatedGCN layer
        self.dropout = dropout
        self.hook = hook

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        if self.hook:
            self.hook(batch)
        x = F.dropout(self.inner(batch.x).relu(), self.dropout, self.training)
        if self.training and self.dropout:  # draws from all three generators
            x = x * (1 + 0.1 * np.random.rand() * random.random())
        x = x.new_zeros(batch.num_graphs, 8).index_add(0, batch.batch, x) / batch.ptr.diff()[:, None]
        return self.outer(x), batch.y


def cross_entropy(pred: Tensor, true: Tensor, all_reduce: Callable = identity) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return F.cross_entropy(pred, true, reduction="sum"), torch.tensor(float(len(true))).clamp(min=1e-30)


def weighted_cross_entropy(pred: Tensor, true: Tensor, all_reduce: Callable = identity) -> tuple[Tensor, Tensor]:
    """Weights that depend on the classes of the global batch: wrong unless `all_reduce` sees every real row once."""
    counts = all_reduce(torch.bincount(true, minlength=CLASSES).to(pred))
    weight = (1 - counts / counts.sum())[true]
    total = (weight * F.cross_entropy(pred, true, reduction="none")).sum()
    return total, weight.sum().clamp(min=1e-30)


def accuracy(score: Tensor, true: Tensor) -> float:
    assert score.dtype in (torch.float32, torch.float64)  # never of half precision
    return float((score.argmax(-1) == true).float().mean())


TASK = Task(
    name="classification_multi",
    loss=cross_entropy,
    score=lambda pred: pred.log_softmax(-1),
    metrics={"accuracy": accuracy, "rows": lambda _, true: float(len(true))},
    metric_best="accuracy",
    maximize=True,
)


def make_loaders(rank: int = 0, world: int = 1, batch_size: int = 4) -> list[ToyLoader]:
    return [
        ToyLoader(make_graphs(TRAIN, 0), batch_size, True, rank, world),
        ToyLoader(make_graphs(VAL, 1), batch_size, False, rank, world),
        ToyLoader(make_graphs(TEST, 2), batch_size, False, rank, world),
    ]


def run(run_dir: Path, hook: Callable[[Any], None] | None = None, dropout: float = 0.5, **options: Any) -> dict:
    """Train the toy; `options` are fields of TrainSettings, or `task, loaders, scheduler, fabric, writers, lr`."""
    seed_everything(0)
    model = options.pop("model", None) or ToyModel(dropout, hook)
    optimizer = options.pop("optimizer", torch.optim.AdamW)(model.parameters(), lr=options.pop("lr", 0.05))
    make_scheduler = options.pop("scheduler", lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.8))
    loaders = options.pop("loaders", None) or make_loaders()
    task = options.pop("task", TASK)
    fabric = options.pop("fabric", None) or make_fabric("cpu")
    writers = options.pop("writers", ())
    settings = TrainSettings(**{"max_epoch": 6, "ckpt_period": 1, "config_hash": "toy"} | options)
    return train(model, loaders, optimizer, make_scheduler(optimizer), task, settings, run_dir, fabric, writers)


TIMES = ("time_epoch", "time_iter", "eta", "eta_hours")


def read_stats(run_dir: Path, split: str) -> list[dict]:
    """The lines of stats.json without the times, which differ from run to run."""
    lines = (Path(run_dir) / split / "stats.json").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]


def last_checkpoint(run_dir: Path) -> dict:
    paths = sorted((Path(run_dir) / "ckpt").glob("[0-9]*.ckpt"), key=lambda path: int(path.stem))
    return torch.load(paths[-1], weights_only=True)
