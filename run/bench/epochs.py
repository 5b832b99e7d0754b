"""Epoch benchmark: whole training epochs of our loop and of a reference implementation, on the same batches.

  python -m run.bench.epochs                                graphs like those of PascalVOC-SP and of MalNet-Tiny
  python -m run.bench.epochs --data pascalvoc --attn-dropout 0 --threads 2

The model is GraphGPS's for the data set: GatedGCN and full attention, with as many parameters in both. The reference
(tests/reference/gps_model.py) uses torch_geometric's `GPSConv` with a GatedGCN on MessagePassing; ours with k-MIP
attention is measured beside them. A paired benchmark, see harness.py: a pass is an epoch, metrics included.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, NamedTuple

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
from tests.reference import gps_model

from . import bench_records
from .harness import Bounds, Facts, Pass, Row, Stopwatch, measure
from .synthetic_graphs import call_graph, superpixels

LIMIT = 1200  # seconds: the reference takes a minute for an epoch
REFERENCE = "reference (frozen)"
OURS = "ours: GatedGCN+"
ATTENTIONS = {"Transformer": FullAttention, "kMIP": KMIPAttention}
NAMES = [REFERENCE, *(OURS + name for name in ATTENTIONS)]
RATE, DECAY = 5e-4, 1e-5
WARM_UP_GRAPHS = 2  # of the first epoch
COLUMNS = "data graphs n attn_dropout method seconds nodes_per_s vs_frozen memory_mib status".split()


class Shape(NamedTuple):
    """Graphs like those of a public data set, and the model that GraphGPS trains on it."""

    graph: Callable[[np.random.Generator], Data]
    columns: tuple[int, int]  # of node features and of edge features, 0 for none
    classes: int
    per_graph: bool  # a label for each graph, not each node
    loss: str
    batch_size: int
    dim: int
    heads: int
    layers: int
    attn_dropout: float  # channels are not dropped
    num_graphs: int  # of an epoch


SHAPES = {
    "pascalvoc": Shape(superpixels, (14, 2), 21, False, "weighted_cross_entropy", 32, 96, 8, 4, 0.5, 128),
    "malnet": Shape(call_graph, (5, 0), 5, True, "cross_entropy", 16, 64, 4, 5, 0.0, 48),
}


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    args = bench_records.parse(
        words,
        __doc__,
        paired=True,
        limit=(float, LIMIT, "seconds that the passes of a cell may take"),
        data=(str, ",".join(SHAPES), "comma-separated"),
        graphs=(bench_records.positive, None, "graphs of an epoch instead of 128 of pascalvoc, 48 of malnet"),
        attn_dropout=(float, None, "of attention weights instead of 0.5 in pascalvoc, 0 in malnet"),
    )
    args.data = bench_records.listed("data", args.data, SHAPES)
    if args.attn_dropout is not None and not 0 <= args.attn_dropout < 1:
        raise ValueError(f"--attn-dropout must be in [0, 1), got {args.attn_dropout:g}")
    return args


def main(words: list[str]) -> int:
    """Measure, write, print, compare; return the exit code."""
    args = parse(words)
    cells = []
    for data in args.data:
        shape = SHAPES[data]
        graphs = args.graphs or shape.num_graphs
        common = {"bench": "epochs", "setting": "epoch", "data": data, "graphs": graphs, "k": args.k}
        common |= {"n": sum(graph.num_nodes for graph in draw(shape, graphs)), "dim": shape.dim}
        common |= {"heads": shape.heads, "device": args.device, "threads": args.threads}
        common["attn_dropout"] = shape.attn_dropout if args.attn_dropout is None else args.attn_dropout
        cells.append([common | {"method": name} for name in bench_records.pick(NAMES, args.methods, REFERENCE)])
    rows = measure(cells, Bounds(args.repeats, args.limit))
    for row in rows:
        if row["status"] == "ok":
            row |= {"seconds": row["total_ms"] / 1000, "nodes_per_s": 1000 * row["n"] / row["total_ms"]}
    return bench_records.save("epochs", args, rows, COLUMNS, REFERENCE)


def draw(shape: Shape, num_graphs: int) -> list[Data]:
    """Return the same graphs at each call."""
    rng = np.random.default_rng(0)
    return [shape.graph(rng) for _ in range(num_graphs)]


def make(cell: Row, small: bool) -> tuple[Pass, Facts]:
    """Return one pass, a training epoch with its metrics, and what gives the facts about it."""
    name, device = cell["method"], cell["device"]
    shape = SHAPES[cell["data"]]._replace(attn_dropout=cell["attn_dropout"])
    graphs = draw(shape, WARM_UP_GRAPHS if small else cell["graphs"])
    torch.manual_seed(0)
    if name == REFERENCE:
        epoch = reference_epoch(shape, graphs, device)
    else:
        epoch = our_epoch(shape, graphs, name, cell["k"], device)
    number = count()

    def run() -> dict[str, float]:
        watch = Stopwatch(device)
        epoch(next(number))
        return {"total": watch.lap()}

    return run, dict


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


def reference_model(shape: Shape) -> gps_model.ReferenceGPS:
    """Return the reference of our model with full attention."""
    sizes = (shape.dim, shape.heads, shape.layers)
    return gps_model.ReferenceGPS(shape.columns, shape.classes, sizes, shape.attn_dropout, shape.per_graph)


def our_epoch(shape: Shape, graphs: list[Data], name: str, k: int, device: str) -> Callable[[int], object]:
    """Return an epoch of our loop, given its number."""
    attention = name.removeprefix(OURS)
    model = our_model(shape, attention, **({"k": k} if attention == "kMIP" else {}))
    fabric = make_fabric(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    task = make_task("classification_multi", shape.classes, shape.loss)
    settings = TrainSettings(max_epoch=1000)
    size = sum(parameter.numel() for parameter in model.parameters())
    session = Session(fabric, *fabric.setup(model, optimizer), task, settings, StopSignals(), size)
    return partial(run_epoch, session, GraphLoader(graphs, shape.batch_size, shuffle=True), "train")


def reference_epoch(shape: Shape, graphs: list[Data], device: str) -> Callable[[int], object]:
    """Return an epoch of the reference, which has the initial weights of ours, given its number."""
    ours, model = our_model(shape, "Transformer"), reference_model(shape)  # in this order: ours has the seed's weights
    gps_model.load_ours(model, ours)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    weighted = shape.loss.startswith("weighted")
    loss = gps_model.weighted_cross_entropy if weighted else nn.functional.cross_entropy

    def epoch(number: int) -> object:
        order = np.random.default_rng((0, number)).permutation(len(graphs))  # that of `GraphLoader`: the same batches
        batches = DataLoader([graphs[i] for i in order], shape.batch_size)
        return gps_model.train_epoch(model, (batch.to(device) for batch in batches), loss, optimizer)

    return epoch


if __name__ == "__main__":
    bench_records.run(main)
