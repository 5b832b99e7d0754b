"""Layer-wise batch benchmark: drawing in-edges by scores, and the loader's time and memory on a large synthetic graph.

  python -m run.bench.layer_batches
  python -m run.bench.layer_batches --part epoch --nodes 200000
  python -m run.bench.layer_batches --part draw --nodes 1e5

draw: k edges of each of N nodes with 35 in-edges, all nodes at once: "lexsort" draws keys of all edges and sorts them
by node and key (numpy; the baseline), "numpy" is what the package does without a compiler, "kernel" its C loop, and
"copy" copies the scores into memory that is there: the floor. Processor seconds of the fastest pass, all methods
alternately.
epoch: a fresh process loads one epoch of a graph of N nodes with random edges (41 in-edges each, scores of each layer,
features) that are mapped from disk. Columns: rows (n_0 of the largest batch), seconds (per batch), anon_mib (largest
anonymous memory after a batch, above that of the idle process), peak_mib (largest resident size, pages of the mapped
files included, which the system takes back when it needs memory), files_mib.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data import edge_sampling
from graphgps_kmip.data.edge_sampling import EPS, draw_edges
from graphgps_kmip.data.layer_loader import LayerLoader, LayerSampling
from graphgps_kmip.data.score_file import AttentionScores, LayerScores, read_scores, write_scores
from graphgps_kmip.native import unavailable_reason

from . import bench_records
from .harness import MIB, Row, alternate, resident_mib

DRAWN_FROM = 35  # in-edges of a node in "draw"
IN_EDGES = 41  # in "epoch": 10 of the graph, 30 of the expander, one self loop
FEATURES = 100
COLUMNS = ["part", "method", "n", "k", "cpu_seconds", "vs_lexsort", "batch_size", "batches", "rows", "seconds"]
COLUMNS += ["anon_mib", "peak_mib", "files_mib"]


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    return bench_records.parse(
        words,
        __doc__,
        part=(("draw", "epoch", "both"), "both", "what to measure"),
        nodes=(bench_records.positive, 0, "N (default: 10^6 to draw, 2 * 10^6 for an epoch)"),
        k=(bench_records.positive, 5, "edges drawn of each node and layer"),
        layers=(bench_records.positive, 4, "epoch: layers"),
        batch_size=(bench_records.positive, 256, "epoch: nodes of a batch that count"),
        train=(bench_records.positive, 20_000, "epoch: nodes of the split"),
        repeats=(bench_records.positive, 3, "draw: passes of each method"),
        name=(str, "", "of the files instead of when and with what code they were made"),
    )


def random_layer(num_nodes: int, degree: int, seed: int, first: LayerScores | None = None) -> LayerScores:
    """Return a layer of random edges, or other scores of the edges of the first one."""
    generator = torch.Generator().manual_seed(seed)
    score = torch.rand(num_nodes, degree, generator=generator)
    score /= score.sum(dim=1, keepdim=True)
    if first is not None:
        return LayerScores(first.ptr, first.source, first.kind, score.flatten())
    count = num_nodes * degree
    source = torch.randint(num_nodes, (count,), generator=generator, dtype=torch.int32)
    kind = torch.randint(3, (count,), generator=generator, dtype=torch.uint8)
    return LayerScores(torch.arange(num_nodes + 1) * degree, source, kind, score.flatten())


def by_sorting(layer: LayerScores, k: int) -> Tensor:
    """Draw edges as one would in a few lines of numpy: sort all edges by node and key."""
    score = layer.score.numpy()
    keys = -np.log(np.random.default_rng(0).random(len(score))) / (score + EPS)
    node = np.repeat(np.arange(layer.num_nodes), np.diff(layer.ptr.numpy()))
    order = np.lexsort((keys, node))
    return torch.from_numpy(order[np.arange(len(order)) - layer.ptr.numpy()[node] < k])


def drawn(args: argparse.Namespace) -> list[Row]:
    """Time the methods that draw edges of all nodes."""
    num_nodes = args.nodes or 1_000_000
    layer = random_layer(num_nodes, DRAWN_FROM, 0)
    target = torch.empty_like(layer.score)
    target.copy_(layer.score)

    def package(reason: str | None) -> None:
        before, edge_sampling.unavailable_reason = edge_sampling.unavailable_reason, lambda *_: reason
        try:
            draw_edges(layer, args.k, "reservoir", (0, 0))
        finally:
            edge_sampling.unavailable_reason = before

    methods: dict[str, Callable[[], object]] = {
        "lexsort": lambda: by_sorting(layer, args.k),
        "numpy": lambda: package("no compiler"),
        "kernel": lambda: package(None),
        "copy": lambda: target.copy_(layer.score),
    }
    if unavailable_reason(*edge_sampling.KERNEL):
        del methods["kernel"]
    best = {
        name: min(cpu for _, cpu in passes) for name, passes in alternate(methods, args.repeats, warm_up=False).items()
    }
    shared = {"part": "draw", "n": num_nodes, "k": args.k}
    return [
        shared | {"method": name, "cpu_seconds": seconds, "vs_lexsort": best["lexsort"] / seconds}
        for name, seconds in best.items()
    ]


def write_graph(folder: Path, num_nodes: int, num_layers: int, num_train: int) -> None:
    """Write graph and scores."""
    first = random_layer(num_nodes, IN_EDGES, 0)
    layers = [first, *(random_layer(num_nodes, IN_EDGES, seed, first) for seed in range(1, num_layers))]
    facts = {"data": "", "split": "", "settings": "", "seed": 0, "epoch": 0, "num_nodes": num_nodes}
    write_scores(folder / "scores.pt", AttentionScores(layers, facts | {"kinds": "graph, expander, self loop"}))
    generator = torch.Generator().manual_seed(0)
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[torch.randperm(num_nodes, generator=generator)[:num_train]] = True
    graph = {
        "x": torch.randn(num_nodes, FEATURES, generator=generator),
        "y": torch.randint(10, (num_nodes,), generator=generator),
        "train_mask": mask,
    }
    torch.save(graph, folder / "graph.pt")


def load_epoch(folder: str, sampling: LayerSampling, threads: int) -> Row:
    """Load one epoch in this process; return the measurements."""
    torch.set_num_threads(threads)
    before = resident_mib("RssAnon")
    graph = Data.from_dict(torch.load(Path(folder) / "graph.pt", mmap=True, weights_only=True))
    load = LayerLoader(graph, "train", read_scores(Path(folder) / "scores.pt"), sampling, shuffle=True)
    anonymous, rows, start = 0.0, 0, time.perf_counter()
    for batch in load:
        anonymous, rows = max(anonymous, resident_mib("RssAnon")), max(rows, batch.layer_sizes[0])
    seconds = (time.perf_counter() - start) / len(load)
    files = sum(path.stat().st_size for path in Path(folder).iterdir()) / MIB
    memory = {"anon_mib": anonymous - before, "peak_mib": resident_mib("VmHWM"), "files_mib": files}
    return {"batches": len(load), "rows": rows, "seconds": seconds, **memory}


def loaded(args: argparse.Namespace) -> list[Row]:
    """Measure one epoch of the loader in a process of its own."""
    num_nodes = args.nodes or 2_000_000
    sampling = LayerSampling((args.k,) * args.layers, batch_size=args.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        write_graph(Path(folder), num_nodes, args.layers, min(args.train, num_nodes))
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            row = pool.submit(load_epoch, folder, sampling, args.threads).result()
    return [{"part": "epoch", "n": num_nodes, "k": args.k, "batch_size": args.batch_size, **row}]


def main(words: list[str]) -> int:
    """Measure, print, write; return the exit code."""
    args = parse(words)
    torch.set_num_threads(args.threads)
    rows = drawn(args) if args.part != "epoch" else []
    rows += loaded(args) if args.part != "draw" else []
    return bench_records.save("layer_batches", args, rows, COLUMNS)


if __name__ == "__main__":
    bench_records.run(main)
