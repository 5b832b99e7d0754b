"""Whole training epochs of our loop and of the stand-in for the stock code, on the same batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from graphgps_kmip.attention import FullAttention, KMIPAttention
from graphgps_kmip.common.signals import StopSignals
from graphgps_kmip.data import GraphLoader
from graphgps_kmip.encoding.feature_encoders import ConstantEdgeEncoder, LinearEdgeEncoder, LinearNodeEncoder
from graphgps_kmip.model import FeatureEncoder, GPSLayer, GPSModel, GraphHead, NodeHead
from graphgps_kmip.mpnn import GatedGCN
from graphgps_kmip.task import make_task
from graphgps_kmip.train.distributed import make_fabric
from graphgps_kmip.train.epoch import Session, run_epoch
from graphgps_kmip.train.settings import TrainSettings
from graphgps_kmip.train.stop import StopSignals
from run.bench import reference_gps as stock
from run.bench.passes import Pass, Stopwatch
from run.bench.synthetic_graphs import SHAPES, Shape, draw

STOCK = "stand-in (frozen)"
RATE, DECAY = 5e-4, 1e-5


ATTENTIONS = {"Transformer": FullAttention, "kMIP": KMIPAttention}
OURS = "ours: GatedGCN+"


def names() -> list[str]:
    """Return the contestants."""
    return [STOCK, *(OURS + name for name in ATTENTIONS)]


def our_model(shape: Shape, attention: str, **options: Any) -> GPSModel:
    """Return our model, with the attention of this name."""
    dim, (nodes, edges) = shape.dim, shape.columns
    edge = LinearEdgeEncoder(edges, dim) if edges else ConstantEdgeEncoder(dim)
    layers = [
        GPSLayer(dim, GatedGCN(dim), ATTENTIONS[attention](dim, shape.heads, shape.attn_dropout, **options))
        for _ in range(shape.layers)
    ]
    head = GraphHead(dim, shape.classes) if shape.per_graph else NodeHead(dim, shape.classes)
    return GPSModel(FeatureEncoder(dim, LinearNodeEncoder(nodes, dim), edge), layers, head)


def stock_model(shape: Shape) -> stock.StockModel:
    """Return the stand-in for our model with full attention, with its weights."""
    dropouts = (0.0, shape.attn_dropout)
    sizes = (shape.dim, shape.heads, shape.layers)
    return stock.StockModel(shape.columns, shape.classes, *sizes, dropouts, shape.per_graph)


def epoch_pass(
    name: str, data: str, num_graphs: int, k: int, device: str, attn_dropout: float
) -> tuple[Pass, Callable[[], dict[str, Any]]]:
    """Return one pass, a training epoch with its metrics, and the facts about it.

    Args:
        name: one of `names`.
        data: a row of `SHAPES`.
        num_graphs: graphs of the epoch.
        k: keys of k-MIP.
        device: where.
        attn_dropout: instead of the shape's.
    """
    shape = replace(SHAPES[data], attn_dropout=attn_dropout)
    graphs = draw(shape, num_graphs)
    torch.manual_seed(0)
    epoch = stock_epoch(shape, graphs, device) if name == STOCK else our_epoch(shape, graphs, name, k, device)
    number = count()

    def run() -> dict[str, float]:
        watch = Stopwatch(device)
        epoch(next(number))
        return {"total": watch.lap()}

    return run, dict


def our_epoch(shape: Shape, graphs: list[Data], name: str, k: int, device: str) -> Callable[[int], object]:
    """Return an epoch of our loop, given its number."""
    attention = name.removeprefix(OURS)
    model = our_model(shape, attention, **({"k": k} if attention == "kMIP" else {}))
    fabric = make_fabric(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    task = make_task("classification_multi", shape.classes, shape.loss)
    settings = TrainSettings(max_epoch=1000)
    session = Session(fabric, *fabric.setup(model, optimizer), task, settings, StopSignals(), num_params(model))
    loader = GraphLoader(graphs, shape.batch_size, shuffle=True)
    return partial(run_epoch, session, loader, "train")


def stock_epoch(shape: Shape, graphs: list[Data], device: str) -> Callable[[int], object]:
    """Return an epoch of the stand-in.

    Raises:
        ValueError: its model has not as many parameters as ours.
    """
    ours, model = our_model(shape, "Transformer"), stock_model(shape)
    if num_params(ours) != num_params(model):
        raise ValueError(f"the models differ: {num_params(ours)} and {num_params(model)} parameters")
    stock.load_ours(model, ours)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    loader = DataLoader(graphs, shape.batch_size, sampler=SameOrder(len(graphs)))
    loss = stock.weighted_cross_entropy if shape.loss.startswith("weighted") else nn.functional.cross_entropy

    def epoch(number: int) -> object:
        loader.sampler.epoch = number
        return stock.train_epoch(model, (batch.to(device) for batch in loader), loss, optimizer)

    return epoch


class SameOrder(torch.utils.data.Sampler):
    """The order in which `GraphLoader` goes through its graphs: the batches of both are the same."""

    def __init__(self, num_graphs: int) -> None:
        self.num_graphs, self.epoch = num_graphs, 0

    def __len__(self) -> int:
        return self.num_graphs

    def __iter__(self) -> Any:
        return iter(np.random.default_rng((0, self.epoch)).permutation(self.num_graphs).tolist())


def num_params(model: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())
