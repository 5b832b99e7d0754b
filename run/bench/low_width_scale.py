"""Low-width method on one large synthetic graph: time and peak memory of both stages, and the speed of their layers.

  python -m run.bench.low_width_scale
  python -m run.bench.low_width_scale --nodes 200000 --batch-sizes 64,256,1024
  python -m run.bench.low_width_scale --part layers --layer-nodes 20000

Networks are those of configs/LowWidth/arxiv*.yaml (3 layers; estimator of width 8, sparse network of width 96 that
draws 6 in-edges); the graph is random, synthetic, with IN_EDGES directed edges into a node, an expander of degree 30
and self loops. Each row of the first table is a process of its own, which loads what the ones before it wrote:

  expander   drawing the expander's edges
  estimator  an epoch of stage 1: one training step on the whole graph
  scores     one pass over the whole graph that computes the scores of all layers, and writing them
  sparse     training steps of stage 2 (draw, forward, loss, backward, AdamW) in batches of BATCH training nodes

graph_mib is the memory of features, labels, masks and edges that the part loads; peak_mib the largest resident memory
of the process, which has all of that in it, libraries, and the pages of the mapped score file, which the system takes
back when it needs memory; anon_mib the largest anonymous memory above what there was before the first step (networks,
batches and gradients: "graph aside"). seconds are those of one step, epoch_s those times the steps of an epoch; cpu_s
are the processor seconds of a step, of all threads, which other work on the machine changes less.

layers: forward and backward of one layer of width 96 on one graph, alternately, processor seconds of the fastest pass:
"in-degree C" along the edges that are drawn, "Exphormer" along all 41 edges of each node by the same operator, "by
torch" without the C loops, and "edge list", Exphormer with the features, queries, keys and values of each edge as
tensors of their own (tests/reference), as public code holds them. speedup is that of "in-degree C".
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Batch, Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.attention import clamped_attention
from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.exphormer import ExphormerAttention, ExphormerState
from graphgps_kmip.attention.sampled_edges import SampledEdgeAttention
from graphgps_kmip.data.layer_loader import LayerLoader, LayerSampling
from graphgps_kmip.data.score_file import AttentionScores, read_scores, write_scores
from graphgps_kmip.encoding.expander_graph import expander_edges
from graphgps_kmip.gym.building.network_building import build_network
from graphgps_kmip.gym.config.config_loading import load_config
from graphgps_kmip.gym.running.score_saving import collect_scores
from graphgps_kmip.model.spexphormer_layer import SpexphormerLayer
from tests.reference.attention_formulas import Edges

from . import bench_records
from .harness import MIB, Row, alternate, resident_mib

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "LowWidth"
IN_EDGES = 10  # directed edges of the graph into a node
CLASSES, TRAIN, KINDS = 40, 0.5, 3
COLUMNS = (
    "part method n edges batch_size rows steps seconds cpu_s epoch_s graph_mib anon_mib peak_mib ms speedup".split()
)
MOMENT = 0.01  # seconds between two looks at the memory of a process


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    return bench_records.parse(
        words,
        __doc__,
        part=(("stages", "layers", "both"), "both", "what to measure"),
        nodes=(bench_records.positive, 2_000_000, "N of the graph of both stages"),
        features=(bench_records.positive, 100, "of a node, float32"),
        batch_sizes=(bench_records.sizes, [64, 256, 1024, 4096], "sparse: training nodes of a batch"),
        steps=(bench_records.positive, 5, "sparse: steps"),
        layer_nodes=(bench_records.positive, 20_000, "N of the graph of the layers"),
        repeats=(bench_records.positive, 5, "layers: passes of each"),
        name=(str, "", "of the files instead of when and with what code they were made"),
    )


def main(words: list[str]) -> int:
    """Measure, print, write; return the exit code."""
    args = parse(words)
    torch.set_num_threads(args.threads)
    rows = stages(args) if args.part != "layers" else []
    rows += layers(args) if args.part != "stages" else []
    return bench_records.save("low_width_scale", args, rows, COLUMNS)


def write_graph(folder: Path, num_nodes: int, num_features: int) -> None:
    """Write a random graph: features, labels, training mask, and directed edges of the same in-degree everywhere."""
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(num_nodes).repeat_interleave(IN_EDGES)
    source = torch.randint(num_nodes, (len(target),), generator=generator)
    train = torch.rand(num_nodes, generator=generator) < TRAIN
    graph = {
        "x": torch.randn(num_nodes, num_features, generator=generator),
        "y": torch.randint(CLASSES, (num_nodes,), generator=generator),
        "train_mask": train,
        "val_mask": ~train,
        "edge_index": torch.stack([source, target]),
    }
    torch.save(graph, folder / "graph.pt")


def stages(args: argparse.Namespace) -> list[Row]:
    """Measure each part of both stages in a process of its own."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        in_process(write_graph, folder, args.nodes, args.features)
        works: list[tuple[Row, Callable[..., Row], tuple[Any, ...]]] = [
            ({"part": "expander"}, expander, (args.nodes,)),
            ({"part": "estimator"}, estimator, ()),
            ({"part": "scores"}, scores, ()),
        ]
        works += [({"part": "sparse", "batch_size": size}, sparse, (size, args.steps)) for size in args.batch_sizes]
        for facts, work, given in works:
            found, peak = in_process(work, folder, *given, threads=args.threads)
            found["anon_mib"] = peak - found.pop("before_mib")
            rows.append({"n": args.nodes, **facts, **found})
    return rows


def in_process(work: Callable[..., Any], *given: Any, threads: int = 1) -> tuple[Any, float]:
    """Call a function in a fresh process; return its result and the largest anonymous memory of the process, in MiB."""
    largest = 0.0
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        done: Future = pool.submit(work, *given)
        (process,) = pool._processes
        while not done.done():
            largest = max(largest, resident_mib("RssAnon", process))
            time.sleep(MOMENT)
        return done.result(), largest


class _Watch:
    """Time and memory of a process from here on."""

    def __init__(self) -> None:
        self.before = resident_mib("RssAnon")
        self.start = time.perf_counter(), time.process_time()

    def facts(self, steps: int = 1) -> Row:
        """Return the seconds of a step, and the memory."""
        seconds = (time.perf_counter() - self.start[0]) / steps
        cpu = (time.process_time() - self.start[1]) / steps
        return {"seconds": seconds, "cpu_s": cpu, "peak_mib": resident_mib("VmHWM"), "before_mib": self.before}


def expander(folder: Path, num_nodes: int) -> Row:
    """Draw the expander and write its edges."""
    watch = _Watch()
    edges = expander_edges(num_nodes, 15, "Hamiltonian", rng=np.random.default_rng(0))
    facts = watch.facts()
    torch.save(edges, folder / "expander.pt")
    return {"edges": edges.size(1), **facts}


def _network(file: str, num_features: int) -> nn.Module:
    load_config(cfg, CONFIGS / file, [])
    torch.manual_seed(0)
    cfg.share.dim_in = num_features
    return build_network(cfg.model.type, num_features, CLASSES)


def _graph(folder: Path, with_expander: bool) -> tuple[Data, float]:
    """Return the graph, in memory, and its size."""
    graph = Data.from_dict(torch.load(folder / "graph.pt", weights_only=True))
    if with_expander:
        graph.expander_edge_index = torch.load(folder / "expander.pt", weights_only=True)
    return graph, sum(value.nbytes for _, value in graph if isinstance(value, Tensor)) / MIB


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Data) -> None:
    batch.split = "train"
    optimizer.zero_grad()
    cross_entropy(*model(batch)).backward()
    optimizer.step()


def estimator(folder: Path) -> Row:
    """Take one training step of stage 1, an epoch."""
    graph, size = _graph(folder, with_expander=True)
    model = _network("arxiv-estimator.yaml", graph.num_features).train()
    optimizer = torch.optim.AdamW(model.parameters())
    edges = graph.num_edges + graph.expander_edge_index.size(1) + graph.num_nodes
    batch = Batch.from_data_list([graph])
    del graph  # a batch of one graph may be a copy
    watch = _Watch()
    _step(model, optimizer, batch)
    facts = watch.facts()
    torch.save(model.state_dict(), folder / "estimator.pt")
    return {"edges": edges, "steps": 1, "epoch_s": facts["seconds"], "graph_mib": size, **facts}


def scores(folder: Path) -> Row:
    """Compute and write the scores."""
    graph, size = _graph(folder, with_expander=True)
    model = _network("arxiv-estimator.yaml", graph.num_features)
    model.load_state_dict(torch.load(folder / "estimator.pt", weights_only=True))
    watch = _Watch()
    found, kinds = collect_scores(model, graph, 0)
    facts = {"data": "", "split": "", "settings": "", "seed": 0, "epoch": 0, "num_nodes": graph.num_nodes}
    write_scores(folder / "scores.pt", AttentionScores(found, facts | {"kinds": ", ".join(kinds)}))
    return {"edges": len(found[0].source), "graph_mib": size, **watch.facts()}


def sparse(folder: Path, batch_size: int, num_steps: int) -> Row:
    """Take training steps of stage 2."""
    graph, size = _graph(folder, with_expander=False)
    model = _network("arxiv.yaml", graph.num_features).train()
    optimizer = torch.optim.AdamW(model.parameters())
    degrees = tuple(cfg.spexphormer.degree) * cfg.gt.layers
    found = read_scores(folder / "scores.pt")
    load = LayerLoader(graph, "train", found, LayerSampling(degrees, batch_size=batch_size), shuffle=True)
    watch, batches, rows = _Watch(), iter(load), 0
    for _ in range(num_steps):
        batch = next(batches)
        rows = max(rows, batch.layer_sizes[0])
        _step(model, optimizer, batch)
    facts = watch.facts(num_steps)
    epoch = {"steps": num_steps, "epoch_s": facts["seconds"] * len(load), "graph_mib": size}
    return {"edges": len(found.layers[0].source), "rows": rows, **epoch, **facts}


def layers(args: argparse.Namespace) -> list[Row]:
    """Time one layer of the sparse network and of Exphormer on one graph."""
    num_nodes, dim, heads, degree = args.layer_nodes, 96, 2, 6
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    x = torch.randn(num_nodes, dim, generator=generator, requires_grad=True)
    types = torch.randn(KINDS, dim, generator=generator)
    count = IN_EDGES + 30 + 1
    source = torch.randint(num_nodes, (num_nodes, count), generator=generator)
    kind = torch.tensor([0] * IN_EDGES + [1] * 30 + [2]).expand(num_nodes, -1)
    drawn = torch.rand(num_nodes, count, generator=generator).argsort(dim=1)[:, :degree].sort(dim=1).values

    def edges_of(places: Tensor) -> Tensor:
        target = torch.arange(num_nodes).repeat_interleave(places.size(1))
        return torch.stack([source.gather(1, places).flatten(), target, kind.gather(1, places).flatten()])

    state = ExphormerState(edges_of(torch.arange(count).expand(num_nodes, -1)), types, types.new_empty(0, dim))
    few, context = edges_of(drawn), GraphContext.of(None, x)
    own = SpexphormerLayer(dim, SampledEdgeAttention(dim, heads))
    exphormer = SpexphormerLayer(dim, ExphormerAttention(dim, heads))
    as_list = SpexphormerLayer(dim, Edges(copy.deepcopy(exphormer.attention[0])))

    def sampled() -> None:
        own.along_sampled_edges(x, few, num_nodes, types).sum().backward()

    def whole(layer: SpexphormerLayer) -> None:
        layer(x, context, (state,))[0].sum().backward()

    methods = {f"in-degree {degree}": sampled, "Exphormer": partial(whole, exphormer)}
    methods["Exphormer, edge list"] = partial(whole, as_list)
    methods |= {f"{name}, by torch": partial(_by_torch, methods[name]) for name in list(methods)[:2]}
    passes = alternate(methods, args.repeats)
    best = {name: 1000 * min(cpu for _, cpu in found) for name, found in passes.items()}
    fastest = best[f"in-degree {degree}"]
    edges = {name: few.size(1) if name.startswith("in-degree") else state.edges.size(1) for name in best}
    facts = {"part": "layers", "n": num_nodes}
    return [
        facts | {"method": name, "edges": edges[name], "ms": ms, "speedup": ms / fastest} for name, ms in best.items()
    ]


def _by_torch(work: Callable[[], None]) -> None:
    before = clamped_attention.unavailable_reason
    clamped_attention.unavailable_reason = lambda *_: "not wanted"
    try:
        work()
    finally:
        clamped_attention.unavailable_reason = before


if __name__ == "__main__":
    bench_records.run(main)
