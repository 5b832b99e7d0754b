"""Networks over pairs of nodes: time and memory of a training step of PPGT, GRIT and GPS with full attention.

  python -m run.bench.pair_models                                       all networks and kinds of graphs
  python -m run.bench.pair_models --data peptides --methods 'PPGT,GRIT' --table OUT.json

A pass is one training step without dropout, with random walk probabilities, on synthetic molecules of the data sets'
sizes; "peptides:8" are 8 such graphs. Networks have the sizes of the public files. A paired benchmark, see harness.py.
``--table FILE`` writes JSON for the experiment P-T10: seconds and GiB of one step on 32 graphs.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import gamma, norm
from torch import nn
from torch.nn.functional import l1_loss
from torch_geometric.data import Batch, Data

from graphgps_kmip import create_model
from graphgps_kmip.errors import ConfigError, report_mistakes

from . import bench_records
from .harness import Bounds, Facts, Pass, Row, Stopwatch, measure
from .synthetic_graphs import tree

PPGT, GRIT, GPS = NAMES = ["PPGT", "GRIT", "GPS"]
WARM_UP_GRAPHS = 2
ATOMS, BONDS = 21, 4  # types of nodes and of edges, as in ZINC
COLUMNS = (
    "data method graphs n pairs parameters total_ms total_min_ms forward_ms backward_ms memory_mib "
    "time_of_grit memory_of_grit status"
).split()


class Shape(NamedTuple):
    """A batch like those of a public data set, and the networks that are trained on it."""

    graphs: int
    sizes: tuple[float, float, int, int]  # mean, standard deviation, least and largest number of nodes
    layers: int
    dim: int
    heads: int
    ksteps: int
    blocks: int  # of the pair stem
    outputs: int


PEPTIDES, ZINC = (151.0, 84.0, 8, 444), (23.2, 4.5, 9, 37)
SHAPES = {
    "peptides": Shape(32, PEPTIDES, 5, 96, 8, 24, 1, 11),
    "peptides:8": Shape(8, PEPTIDES, 5, 96, 8, 24, 1, 11),
    "peptides-func": Shape(32, PEPTIDES, 5, 96, 12, 32, 1, 10),
    "zinc": Shape(32, ZINC, 12, 64, 8, 24, 2, 1),
    "tiny": Shape(3, ZINC, 2, 16, 2, 4, 1, 1),  # seconds: to see that everything runs
}
TABLED = ("peptides", "tiny")  # of --table
DATA = "zinc,peptides:8,peptides"


@report_mistakes
def main(argv: list[str]) -> int:
    """Measure, write, print; return the exit code."""
    args = bench_records.parse(
        argv,
        __doc__,
        paired=True,
        limit=(float, 600, "seconds that the passes of a cell may take"),
        data=(str, DATA, f"comma-separated: {', '.join(SHAPES)}"),
        table=(Path, None, "JSON file for the experiment P-T10"),
    )
    args.data = bench_records.split_names("data", args.data, SHAPES)
    if args.table and len(set(TABLED) & set(args.data)) != 1:
        raise ConfigError(f"--table needs --data peptides (or tiny), got {','.join(args.data)}")
    names = bench_records.pick(NAMES, args.methods)
    groups = []
    for data in args.data:
        shape = SHAPES[data]
        common = {"bench": "pair_models", "setting": "step", "data": data, "graphs": shape.graphs, "dim": shape.dim}
        common |= {"heads": shape.heads, "n": sum(list_sizes(shape)), "device": args.device, "threads": args.threads}
        groups.append([common | {"method": name} for name in names])
    rows = measure(groups, Bounds(args.repeats, args.limit))
    done = {(row["data"], row["method"]): row for row in rows if row["status"] == "ok"}
    for (data, method), row in done.items():
        if method == PPGT and (grit := done.get((data, GRIT))) is not None:
            row["time_of_grit"] = row["total_ms"] / grit["total_ms"]
            row["memory_of_grit"] = row["memory_mib"] / grit["memory_mib"]
    return bench_records.save(args, rows, COLUMNS, table_content=make_table(rows))


def make_table(rows: list[Row]) -> dict[str, Any]:
    """Return the cells of the experiment's table."""
    cells, empty = {}, []
    for row in rows:
        if row["data"] not in TABLED:
            continue
        if row["status"] != "ok":
            empty.append(f"{row['method']}: {row['status']}")
            continue
        times = [value / 1000 for value in row["total_passes_ms"]]
        cells[row["method"]] = {"step_time": times, "step_memory": [row["memory_mib"] / 1024]}
    return {"cells": cells, "empty": empty, "units": {"step_time": "s", "step_memory": "GiB"}, "sample": True}


def list_sizes(shape: Shape) -> list[int]:
    """Return the number of nodes of each graph: quantiles of a gamma distribution, of a normal one for small spread."""
    mean, std, least, largest = shape.sizes
    share = (np.arange(shape.graphs) + 0.5) / shape.graphs
    narrow = std < mean / 3
    drawn = norm(mean, std).ppf(share) if narrow else gamma((mean / std) ** 2, scale=std**2 / mean).ppf(share)
    return [int(size) for size in drawn.round().clip(least, largest)]


def draw_batch(shape: Shape) -> Batch:
    """Return the same batch at each call, graphs of all sizes in random order."""
    rng = np.random.default_rng(0)
    graphs = [molecule(rng, size, shape.outputs) for size in rng.permutation(list_sizes(shape))]
    return Batch.from_data_list(graphs)


def molecule(rng: np.random.Generator, num_nodes: int, outputs: int) -> Data:
    """Return a tree with short branches and a ring for each 20 nodes; types of atoms and bonds, labels of a graph."""
    graph = tree(rng, num_nodes, rings=num_nodes // 20)
    graph.x = torch.from_numpy(rng.integers(0, ATOMS, (num_nodes, 1)))
    graph.edge_attr = torch.from_numpy(rng.integers(0, BONDS, graph.num_edges))
    graph.y = torch.from_numpy(rng.standard_normal((1, outputs))).float()
    return graph


def build_model(shape: Shape, method: str) -> nn.Module:
    """Return a new network."""
    encoders = {
        "dataset.node_encoder_name": "TypeDictNode" + "+RRWP" * (method == GRIT),
        "dataset.node_encoder_num_types": ATOMS,
        "dataset.edge_encoder_name": "TypeDictEdge",
        "dataset.edge_encoder_num_types": BONDS,
        "posenc_RRWP.ksteps": shape.ksteps,
        "posenc_RRWP.where": "batch",
        "gnn.layers_post_mp": 2,
    }
    options: dict[str, dict[str, Any]] = {
        PPGT: {
            "posenc_RRWP.channels": "K+1",
            "ppgt.stem_hidden": [128],
            "ppgt.stem_blocks": shape.blocks,
            "gnn.act": "gelu",
            "gnn.head": "linear_graph",
        },
        GRIT: {"gt.layer_type": "GRIT", "gnn.head": "graph"},
        GPS: {"gt.layer_type": "GatedGCN+Transformer", "gnn.head": "graph"},
    }
    return create_model(
        options[method].get("gt.layer_type", ""),
        1,
        shape.outputs,
        network={PPGT: "PPGT", GRIT: "GritTransformer", GPS: "GPSModel"}[method],
        edge_dim=1,
        num_layers=shape.layers,
        dim=shape.dim,
        num_heads=shape.heads,
        pooling="mean",
        settings=encoders | options[method],
    )


def make(cell: Row, small: bool) -> tuple[Pass, Facts]:
    """Return one training step, and its facts."""
    device, shape = cell["device"], SHAPES[cell["data"]]
    if small:
        shape = shape._replace(graphs=WARM_UP_GRAPHS, sizes=ZINC)
    torch.manual_seed(0)
    batch, model = draw_batch(shape).to(device), build_model(shape, cell["method"]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-5, fused=True)
    pairs = sum(size**2 for size in list_sizes(shape))

    def run() -> dict[str, float]:
        watch = Stopwatch(device)
        optimizer.zero_grad()
        pred, true = model(copy.copy(batch))
        loss = l1_loss(pred, true)
        forward = watch.lap()
        loss.backward()
        backward = watch.lap()
        optimizer.step()
        return {"forward": forward, "backward": backward, "total": forward + backward + watch.lap()}

    facts = {"pairs": pairs, "parameters": sum(parameter.numel() for parameter in model.parameters())}
    return run, lambda: facts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
