"""Epoch benchmark: training epochs of our loop and of a reference implementation on the same batches.

  python -m run.bench.epochs                                all data and models

Models of public configuration files on synthetic graphs of the sizes of their data sets. The reference
(tests/reference/gps_model.py), of as many parameters, uses torch_geometric's `GPSConv` and MessagePassing. A paired
benchmark, see harness.py: a pass is an epoch with metrics; on a busy machine, compare processor seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from graphgps_kmip.attention import ExphormerAttention, FullAttention, KMIPAttention
from graphgps_kmip.common.signals import StopSignals
from graphgps_kmip.data import GraphLoader
from graphgps_kmip.encoding.expander_graph import expander_edges
from graphgps_kmip.encoding.feature_encoders import ConstantEdgeEncoder, LinearEdgeEncoder, LinearNodeEncoder
from graphgps_kmip.errors import ConfigError, report_mistakes
from graphgps_kmip.model import FeatureEncoder, GPSLayer, GPSModel, GraphHead, NodeHead
from graphgps_kmip.model.transformer_layers import GNNLayer
from graphgps_kmip.mpnn import GINE, GatedGCN
from graphgps_kmip.task import Task, make_task
from graphgps_kmip.train.distributed import make_fabric
from graphgps_kmip.train.loop import Session, run_epoch
from graphgps_kmip.train.settings import TrainSettings
from tests.reference import gps_model

from . import bench_records
from .harness import Bounds, Facts, Pass, Row, Stopwatch, measure
from .synthetic_graphs import call_graph, superpixels, tree

LIMIT = 1200  # seconds: the reference takes a minute for an epoch
REFERENCE = "reference"
OURS = "ours: "
LOCAL = {"GatedGCN": GatedGCN, "GINE": GINE}
ATTENTIONS = {"Transformer": FullAttention, "kMIP": KMIPAttention, "Exphormer": ExphormerAttention}
RATE, DECAY = 5e-4, 1e-5
WARM_UP_GRAPHS = 2  # of the first epoch
EXPANDER_DEGREE = 5
MOLECULE_NODES, MOLECULE_SPREAD = 23, 4.5  # of ZINC
COLUMNS = "data graphs n attn_dropout method seconds cpu_s nodes_per_s vs_plain vs_plain_cpu memory_mib status"


class Shape(NamedTuple):
    """Graphs like those of a public data set, and the model that GraphGPS trains on it."""

    graph: Callable[[np.random.Generator], Data]
    layer: str  # branches as in gt.layer_type
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
    others: tuple[str, ...] = ()  # further layers of ours

    @property
    def methods(self) -> list[str]:
        """Names of the rows."""
        return [REFERENCE, *(OURS + layer for layer in (self.layer, *self.others))]


def superpixels_with_expander(rng: np.random.Generator) -> Data:
    """Return superpixels with the edges of an expander graph."""
    graph = superpixels(rng)
    graph.expander_edge_index = expander_edges(graph.num_nodes, EXPANDER_DEGREE, rng=rng)
    return graph


def molecule(rng: np.random.Generator) -> Data:
    """Return a tree with rings, a type of each node and its random walk columns, as ZINC with RWSE has them."""
    graph = tree(rng, int(np.clip(rng.normal(MOLECULE_NODES, MOLECULE_SPREAD), 9, 38)), rings=3)
    graph.x = torch.from_numpy(rng.standard_normal((graph.num_nodes, 48))).float()
    graph.edge_attr = torch.from_numpy(rng.standard_normal((graph.num_edges, 4))).float()
    graph.y = torch.from_numpy(rng.standard_normal((1, 1))).float()
    return graph


SUPERPIXELS = {"columns": (14, 2), "classes": 21, "per_graph": False, "loss": "weighted_cross_entropy"}
SUPERPIXELS |= {"batch_size": 32, "num_graphs": 128}
SHAPES = {
    "pascalvoc": Shape(
        superpixels, "GatedGCN+Transformer", dim=96, heads=8, layers=4, attn_dropout=0.5, others=("GatedGCN+kMIP",),
        **SUPERPIXELS,
    ),
    "malnet": Shape(
        call_graph, "GatedGCN+Transformer", (5, 0), 5, True, "cross_entropy", 16, 64, 4, 5, 0.0, 48, ("GatedGCN+kMIP",)
    ),
    "pascalvoc-gatedgcn": Shape(superpixels, "GatedGCN", dim=108, heads=1, layers=8, attn_dropout=0.0, **SUPERPIXELS),
    "zinc": Shape(molecule, "GINE+Transformer", (48, 4), 1, True, "l1", 32, 64, 4, 10, 0.5, 1024),
    "pascalvoc-exphormer": Shape(
        superpixels_with_expander, "GatedGCN+Exphormer", dim=96, heads=8, layers=4, attn_dropout=0.0, **SUPERPIXELS
    ),
}  # fmt: skip


@report_mistakes
def main(argv: list[str]) -> int:
    """Measure, write, print; return the exit code."""
    args = bench_records.parse(
        argv,
        __doc__,
        paired=True,
        limit=(float, LIMIT, "seconds that the passes of a cell may take"),
        data=(str, ",".join(SHAPES), "comma-separated"),
        graphs=(bench_records.positive, None, "graphs of an epoch instead of 128 (malnet 48, zinc 1024)"),
        attn_dropout=(float, None, "of full attention's weights instead of 0.5 in pascalvoc and zinc, else 0"),
    )
    args.data = bench_records.split_names("data", args.data, SHAPES)
    if args.attn_dropout is not None and not 0 <= args.attn_dropout < 1:
        raise ConfigError(f"--attn-dropout must be in [0, 1), got {args.attn_dropout:g}")
    cells = []
    for data in args.data:
        shape = SHAPES[data]
        graphs = args.graphs or shape.num_graphs
        common = {"bench": "epochs", "setting": "epoch", "data": data, "graphs": graphs, "k": args.k}
        common |= {"n": sum(graph.num_nodes for graph in draw(shape, graphs)), "dim": shape.dim}
        common |= {"heads": shape.heads, "device": args.device, "threads": args.threads}
        common["attn_dropout"] = shape.attn_dropout if args.attn_dropout is None else args.attn_dropout
        cells.append([common | {"method": name} for name in bench_records.pick(shape.methods, args.methods, REFERENCE)])
    rows, plain = measure(cells, Bounds(args.repeats, args.limit)), {}
    for row in rows:
        if row["status"] == "ok":
            row |= {"seconds": row["total_ms"] / 1000, "cpu_s": row["cpu_ms"] / 1000}
            row["nodes_per_s"] = 1000 * row["n"] / row["total_ms"]
            if row["method"] == REFERENCE:
                plain[row["data"]] = row["cpu_s"]
            if row["data"] in plain:
                row["vs_plain_cpu"] = plain[row["data"]] / row["cpu_s"]
    return bench_records.save(args, rows, COLUMNS.split(), REFERENCE)


def draw(shape: Shape, num_graphs: int) -> list[Data]:
    """Return the same graphs at each call."""
    rng = np.random.default_rng(0)
    return [shape.graph(rng) for _ in range(num_graphs)]


def make(cell: Row, small: bool) -> tuple[Pass, Facts]:
    """Return one pass, a training epoch with its metrics, and no facts."""
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
        watch, start = Stopwatch(device), time.process_time()
        epoch(next(number))
        return {"total": watch.lap(), "cpu": time.process_time() - start}

    return run, dict


def our_model(shape: Shape, layer: str, **options: Any) -> GPSModel:
    """Return our model, with layers of these branches."""
    dim, (nodes, edges) = shape.dim, shape.columns
    local, _, attention = layer.partition("+")

    def build() -> nn.Module:
        if not attention:
            return GNNLayer(LOCAL[local](dim))
        dropout = 0.0 if attention == "Exphormer" else shape.attn_dropout
        return GPSLayer(dim, LOCAL[local](dim), ATTENTIONS[attention](dim, shape.heads, dropout, **options))

    edge = LinearEdgeEncoder(edges, dim) if edges else ConstantEdgeEncoder(dim)
    head = GraphHead(dim, shape.classes) if shape.per_graph else NodeHead(dim, shape.classes)
    layers = [build() for _ in range(shape.layers)]
    return GPSModel(FeatureEncoder(dim, LinearNodeEncoder(nodes, dim), edge), layers, head)


def reference_model(shape: Shape) -> gps_model.ReferenceModel:
    """Return the reference of our model with the layers of the shape."""
    sizes, dropout = (shape.dim, shape.heads, shape.layers), shape.attn_dropout
    return gps_model.ReferenceModel(shape.columns, shape.classes, shape.layer, sizes, dropout, shape.per_graph)


def task_of(shape: Shape) -> Task:
    """Return loss and metrics."""
    return make_task("regression" if shape.loss == "l1" else "classification_multi", shape.classes, shape.loss)


def our_epoch(shape: Shape, graphs: list[Data], name: str, k: int, device: str) -> Callable[[int], object]:
    """Return an epoch of our loop, given its number."""
    layer = name.removeprefix(OURS)
    model = our_model(shape, layer, **({"k": k} if layer.endswith("kMIP") else {}))
    fabric = make_fabric(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    settings = TrainSettings(max_epoch=1000)
    size = sum(parameter.numel() for parameter in model.parameters())
    session = Session(fabric, *fabric.setup(model, optimizer), task_of(shape), settings, StopSignals(), size)
    return partial(run_epoch, session, GraphLoader(graphs, shape.batch_size, shuffle=True), "train")


REFERENCE_LOSSES = {
    "weighted_cross_entropy": gps_model.weighted_cross_entropy,
    "cross_entropy": nn.functional.cross_entropy,
    "l1": nn.functional.l1_loss,
}


def reference_epoch(shape: Shape, graphs: list[Data], device: str) -> Callable[[int], object]:
    """Return an epoch of the reference, which has the initial weights of ours, given its number."""
    ours, model = our_model(shape, shape.layer), reference_model(shape)  # in this order: ours has the seed's weights
    gps_model.load_ours(model, ours)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)

    def epoch(number: int) -> object:
        order = np.random.default_rng((0, number)).permutation(len(graphs))  # that of `GraphLoader`: the same batches
        batches = (batch.to(device) for batch in DataLoader([graphs[i] for i in order], shape.batch_size))
        return gps_model.train_epoch(model, batches, REFERENCE_LOSSES[shape.loss], optimizer)

    return epoch


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
