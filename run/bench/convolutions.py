"""GCN, APPNP, GAT, GraphSAGE, GIN on a CPU: sums over lists of neighbours against torch_geometric's layers.

  python -m run.bench.convolutions
  python -m run.bench.convolutions --quick
  python -m run.bench.convolutions --data tolokers --channels 64 --threads 2

Random edges with the numbers of nodes and edges of known data sets (a batch of 128 molecules for ZINC): times depend on
sizes. A pass is forward and backward of one layer, float32; the two forms share their parameters and take turns, the
first pass of each is not counted. Each pass sorts its edges; the layers of a network share that. With edge features, as
wide as the layer, GAT adds a self loop to each node. Milliseconds on the clock ("ms") and of the CPU ("cpu_ms", all
threads together); "speedup" is torch_geometric's processor time over ours;
"list" says whether the layer would take the lists by itself. Peak memory is that of one pass above what was there
before.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn
from torch_geometric.nn import APPNP, GATConv, GCNConv, GINConv, SAGEConv

from graphgps_kmip.mpnn import summed_convolutions
from graphgps_kmip.mpnn.summed_convolutions import (
    SummedAPPNP,
    SummedGAT,
    SummedGCN,
    SummedGIN,
    SummedSAGE,
    lists_pay,
)

from . import bench_records
from .harness import PeakMemory, Row, alternate

COLUMNS = "data layer method nodes edges channels threads list repeats ms cpu_ms memory_mib speedup".split()
SIZES = {  # nodes, directed edges
    "molecules": (2_970, 6_370),
    "cora": (2_708, 10_556),
    "minesweeper": (10_000, 78_804),
    "tolokers": (11_758, 1_038_000),
}
HEADS = 8  # of GAT
LAYERS: dict[str, Callable[[int], tuple[nn.Module, nn.Module]]] = {
    "GCN": lambda dim: tuple(one(dim, dim, add_self_loops=False) for one in (SummedGCN, GCNConv)),
    "APPNP": lambda dim: (SummedAPPNP(10, 0.1), APPNP(10, 0.1, add_self_loops=False)),  # noqa: ARG005
    "GAT": lambda dim: tuple(one(dim, dim // HEADS, HEADS, add_self_loops=False) for one in (SummedGAT, GATConv)),
    "GAT, edge features": lambda dim: tuple(
        one(dim, dim // HEADS, HEADS, edge_dim=dim) for one in (SummedGAT, GATConv)
    ),
    "GraphSAGE": lambda dim: (SummedSAGE(dim, dim), SAGEConv(dim, dim)),
    "GIN": lambda dim: (SummedGIN(nn.Linear(dim, dim)), GINConv(nn.Linear(dim, dim))),
}
QUICK = {"repeats": 1, "data": "molecules"}


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    positive = bench_records.positive
    args = bench_records.parse(
        words,
        __doc__,
        data=((*SIZES, "all"), "all", "which sizes"),
        channels=(positive, 64, "width of the layer"),
        repeats=(positive, 5, "counted passes"),
        threads=(positive, 1, "CPU threads"),
        quick=(bool, False, "one pass on the smallest size: seconds"),
    )
    vars(args).update(QUICK if args.quick else {})
    if args.channels % HEADS:
        raise ValueError(f"--channels {args.channels} must be a multiple of {HEADS}, the heads of GAT")
    return args


def measure(args: argparse.Namespace, data: str, layer: str) -> list[Row]:
    """Return the rows of both forms of one layer on one size."""
    generator = torch.Generator().manual_seed(0)
    nodes, edges = SIZES[data]
    edge_index = torch.randint(nodes, (2, edges), generator=generator)
    x = torch.randn(nodes, args.channels, generator=generator).requires_grad_()
    ours, theirs = LAYERS[layer](args.channels)
    theirs.load_state_dict(ours.state_dict())
    given = [torch.randn(edges, args.channels, generator=generator).requires_grad_()] * ("edge features" in layer)
    forms = {"ours": ours, "torch_geometric": theirs}
    passes = {name: partial(_pass, conv, x, edge_index, *given) for name, conv in forms.items()}
    chosen = lists_pay(edge_index, args.channels)
    with _lists_everywhere():
        timed = alternate(passes, args.repeats)
        memory = {name: _peak(work) for name, work in passes.items()}
    sizes = {"nodes": nodes, "edges": edges, "channels": args.channels, "threads": args.threads, "list": chosen}
    rows = []
    for name, times in timed.items():
        ms, cpu_ms = (1000 * median(column) for column in zip(*times, strict=True))
        facts = {"repeats": args.repeats, "ms": ms, "cpu_ms": cpu_ms, "memory_mib": memory[name]}
        rows.append({"data": data, "layer": layer, "method": name} | sizes | facts)
    return [row | {"speedup": rows[1]["cpu_ms"] / row["cpu_ms"]} for row in rows]


def _pass(conv: nn.Module, x: Tensor, edge_index: Tensor, *edge_attr: Tensor) -> None:
    conv(x, edge_index.clone(), *edge_attr).square().sum().backward()  # edges that nobody has sorted yet


def _peak(work: Callable[[], None]) -> float | None:
    with PeakMemory("cpu") as peak:
        work()
    return peak.mib


@contextmanager
def _lists_everywhere() -> Iterator[None]:
    """Let the lists serve every size, so that sizes below the threshold can be seen."""
    least, summed_convolutions.MIN_NUMBERS = summed_convolutions.MIN_NUMBERS, 0
    try:
        yield
    finally:
        summed_convolutions.MIN_NUMBERS = least


def main(words: list[str]) -> int:
    """Measure, print, write; return the exit code."""
    args = parse(words)
    torch.set_num_threads(args.threads)
    chosen = SIZES if args.data == "all" else [args.data]
    rows = [row for data in chosen for layer in LAYERS for row in measure(args, data, layer)]
    return bench_records.save("convolutions", args, rows, COLUMNS)


if __name__ == "__main__":
    bench_records.run(main)
