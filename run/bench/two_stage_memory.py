"""Low-width method: peak memory of a training step of both stages, and of Exphormer of degree 30 (paper, figure 3).

  python -m run.bench.two_stage_memory --data photo:synthetic,minesweeper --dir datasets
  python -m run.bench.two_stage_memory --device cuda --table OUT.json

Networks are those of configs/LowWidth; a pass is one training step on all training nodes: "estimator" (stage 1),
"sparse" (stage 2; "sparse, 1000" in batches), Exphormer with and without GCN, and "edge list": tensors of each edge
(tests/reference), as public code has them. NAME is the data of NAME.yaml, in --dir; NAME:synthetic a random graph of
its sizes. memory_mib is the peak above the inputs (input_mib). A paired benchmark, see harness.py. ``--table FILE``
writes JSON for the experiment L-F3; "LowWidth" is the larger of its two stages.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch_geometric.data import Batch, Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.attention.exphormer import KINDS, typed_edges
from graphgps_kmip.data.layer_loader import LayerLoader, LayerSampling
from graphgps_kmip.data.score_file import AttentionScores, LayerScores
from graphgps_kmip.encoding.expander_graph import expander_edges
from graphgps_kmip.errors import report_mistakes
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.data_loading import load_configured
from graphgps_kmip.gym.network_building import build_network
from graphgps_kmip.ops.context import GraphContext
from tests.reference.attention_formulas import Edges

from . import bench_records
from .harness import MIB, Bounds, Facts, Pass, Row, Stopwatch, measure
from .synthetic_graphs import undirected

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "LowWidth"
ESTIMATOR, SPARSE, BATCHED = "estimator", "sparse", "sparse, 1000"
EXPHORMER, WITH_GCN, EDGE_LIST = "Exphormer w/o MPNN", "Exphormer+GCN", "Exphormer, edge list"
FILES = {
    **{ESTIMATOR: "-estimator", SPARSE: "", BATCHED: ""},
    **{EXPHORMER: "-exphormer", WITH_GCN: "-exphormer-gcn", EDGE_LIST: "-exphormer"},
}
BATCH = 1000  # training nodes of a batch of BATCHED
COLUMNS = "data method n edges input_mib memory_mib of_edge_list total_ms status".split()


class Sizes(NamedTuple):
    """A graph as its data set has it."""

    title: str
    nodes: int
    edges: int  # undirected
    features: int
    classes: int
    train: float = 0.6  # share of the training nodes


SIZES = {
    "actor": Sizes("Actor", 7600, 29926, 932, 5),
    "computers": Sizes("Computer", 13381, 245778, 767, 10),
    "photo": Sizes("Photo", 7487, 119043, 745, 8),
    "cs": Sizes("CS", 18333, 81894, 6805, 15),
    "physics": Sizes("Physics", 34493, 247962, 8415, 5),
    "arxiv": Sizes("ogbn-arxiv", 169343, 1166243, 128, 40, 90941 / 169343),
    "cora": Sizes("Cora", 2708, 5278, 1433, 7),
    "citeseer": Sizes("CiteSeer", 3327, 4552, 3703, 6),
    "minesweeper": Sizes("Minesweeper", 10000, 39402, 7, 2, 0.5),
    "tolokers": Sizes("Tolokers", 11758, 519000, 10, 2, 0.5),
}
SYNTHETIC = ":synthetic"
DATA = ",".join(f"{name}{SYNTHETIC}" for name in ("actor", "photo", "computers", "cs", "physics", "arxiv"))
SMALL = 200  # nodes of the first graph, which loads and compiles


@report_mistakes
def main(argv: list[str]) -> int:
    """Measure, write, print; return the exit code."""
    args = bench_records.parse(
        argv,
        __doc__,
        paired=True,
        limit=(float, 600, "seconds that the passes of a cell may take"),
        repeats=(bench_records.positive, 1, "further passes, for the time"),
        data=(str, DATA, f"comma-separated: NAME or NAME{SYNTHETIC} of {', '.join(SIZES)}"),
        dir=(Path, Path("datasets"), "folder of all data sets"),
        nodes=(int, 0, "nodes of synthetic graphs, with less edges and features; 0: those of the data set"),
        table=(Path, None, "JSON file for the experiment L-F3"),
    )
    args.data = bench_records.split_names("data", args.data, [*SIZES, *(f"{name}{SYNTHETIC}" for name in SIZES)])
    names = bench_records.pick(list(FILES), args.methods, "")
    groups = []
    for data in args.data:
        common = {"bench": "two_stage_memory", "data": data, "n": _shrink_sizes(data, args.nodes).nodes}
        common |= {"nodes": args.nodes, "dir": str(args.dir), "device": args.device, "threads": args.threads}
        groups += [[common | {"method": name}] for name in names]  # memory: one process at a time
    rows = measure(groups, Bounds(args.repeats, args.limit))
    edge_list_memory = {
        row["data"]: row["memory_mib"] for row in rows if row["method"] == EDGE_LIST and row["status"] == "ok"
    }
    for row in rows:
        if row["status"] == "ok" and row["data"] in edge_list_memory:
            row["of_edge_list"] = row["memory_mib"] / edge_list_memory[row["data"]]
    content = make_table(rows) | {"sample": args.nodes > 0}
    return bench_records.save(args, rows, COLUMNS, table_content=content)


def make_table(rows: list[Row]) -> dict[str, Any]:
    """Return the cells of the experiment's table, and the reasons for missing ones."""
    cells: dict[str, dict[str, list[float]]] = {}
    empty = []
    for row in rows:
        name, synthetic, _ = row["data"].partition(SYNTHETIC)
        title = SIZES[name].title + (" (synthetic)" if synthetic else "")
        if row["status"] == "ok":
            cells.setdefault(title, {})[row["method"]] = [row["memory_mib"]]
        else:
            empty.append(f"{title}, {row['method']}: {row['status']}")
    for columns in cells.values():
        if ESTIMATOR in columns and SPARSE in columns:
            columns["LowWidth"] = [max(columns[ESTIMATOR][0], columns[SPARSE][0])]
    return {"cells": cells, "empty": empty, "units": {"": "MiB"}}


def _shrink_sizes(data: str, nodes: int) -> Sizes:
    name, synthetic, _ = data.partition(SYNTHETIC)
    sizes = SIZES[name]
    if not (synthetic and nodes):
        return sizes
    edges = max(nodes, sizes.edges * nodes // sizes.nodes)
    return sizes._replace(nodes=nodes, edges=edges, features=min(sizes.features, 16))


def synthetic_graph(sizes: Sizes, seed: int = 0) -> Data:
    """Return a random graph of these sizes, with each edge in both directions."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    graph = undirected(rng.integers(0, sizes.nodes, (2, sizes.edges)), sizes.nodes)
    graph.x = torch.rand(sizes.nodes, sizes.features, generator=generator)
    graph.y = torch.randint(sizes.classes, (sizes.nodes,), generator=generator)
    graph.train_mask = torch.rand(sizes.nodes, generator=generator) < sizes.train
    return graph


def load_graph(data: str, nodes: int) -> Data:
    """Return the graph of a cell, with the expander where ``cfg`` asks for one."""
    real = SYNTHETIC not in data
    graph = load_configured().dataset.graphs[0] if real else synthetic_graph(_shrink_sizes(data, nodes))
    if cfg.prep.exp and "expander_edge_index" not in graph:  # stage 2 is loaded without: it reads scores
        draw = {"rng": np.random.default_rng(0), "check_spectrum": False}
        graph.expander_edge_index = expander_edges(graph.num_nodes, cfg.prep.exp_deg, cfg.prep.exp_algorithm, **draw)
    return graph


def equal_scores(graph: Data, num_layers: int) -> AttentionScores:
    """Return scores of all edges of the attention graph, equal in each node."""
    source, target, kind = typed_edges(GraphContext.from_data(graph))
    degree = target.bincount(minlength=graph.num_nodes)
    ptr = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
    score = (1 / degree.float())[target]
    layer = LayerScores(ptr, source.int(), kind.to(torch.uint8), score)
    return AttentionScores([layer] * num_layers, {"num_nodes": graph.num_nodes, "kinds": ", ".join(KINDS)})


def _compute_loss(pred: Tensor, true: Tensor) -> Tensor:
    if pred.dim() == 1 or pred.size(1) == 1:
        return binary_cross_entropy_with_logits(pred.flatten(), true.flatten().float())
    return cross_entropy(pred, true)


def _build_network(cell: Row, sizes: Sizes) -> nn.Module:
    cfg.share.dim_in = sizes.features
    model = build_network(cfg.model.type, sizes.features, 1 if sizes.classes == 2 else sizes.classes)
    if cell["method"] == EDGE_LIST:
        start = model.start
        for layer in model.layers:
            layer.attention[0].initial_state = start  # the reference names it; it is the network's
            layer.attention[0] = Edges(layer.attention[0])
            del layer.attention[0].attention.initial_state, layer.attention[0].initial_state
    return model


def make(cell: Row, small: bool) -> tuple[Pass, Facts]:
    """Return one training step, and its facts."""
    data, device = cell["data"], cell["device"]
    data = data if not small or SYNTHETIC in data else data + SYNTHETIC
    nodes = SMALL if small else cell["nodes"]
    name = data.partition(SYNTHETIC)[0]
    stage_two = cell["method"] in (SPARSE, BATCHED)
    load_config(cfg, CONFIGS / f"{name}{FILES[cell['method']]}.yaml", ["dataset.dir", cell["dir"]])
    # Also of stage 2, whose scores are of these edges; the files of all stages 1 have this expander, of degree 30.
    cfg.prep.exp, cfg.prep.exp_algorithm, cfg.prep.exp_deg = True, "Hamiltonian", 15
    torch.manual_seed(0)
    graph, sizes = load_graph(data, nodes), _shrink_sizes(data, nodes)
    model = _build_network(cell, sizes).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters())
    next_batch, inputs = _sample_batches(graph, cell["method"]) if stage_two else _repeat_batch(graph, device)

    def run() -> dict[str, float]:
        watch = Stopwatch(device)
        optimizer.zero_grad()
        batch = next_batch().to(device)
        batch.split = "train"
        _compute_loss(*model(batch)).backward()
        optimizer.step()
        return {"total": watch.lap()}

    edges = graph.num_edges + graph.expander_edge_index.size(1) + graph.num_nodes
    return run, lambda: {"edges": edges, "input_mib": inputs / MIB}


def _repeat_batch(graph: Data, device: str) -> tuple[Any, int]:
    batch = Batch.from_data_list([graph]).to(device)
    return lambda: copy.copy(batch), _count_bytes(graph)


def _sample_batches(graph: Data, method: str) -> tuple[Any, int]:
    num_layers, degrees = cfg.gt.layers, list(cfg.spexphormer.degree)
    degrees = tuple(degrees * num_layers if len(degrees) == 1 else degrees)
    scores = equal_scores(graph, num_layers)
    layer = scores.layers[0]
    size = BATCH if method == BATCHED else graph.num_nodes
    loader = LayerLoader(graph, "train", scores, LayerSampling(degrees, batch_size=size), shuffle=True)
    score_bytes = sum(tensor.nbytes for tensor in (layer.ptr, layer.source, layer.kind, layer.score))
    return lambda: next(iter(loader)), _count_bytes(graph) + score_bytes


def _count_bytes(graph: Data) -> int:
    return sum(value.nbytes for _, value in graph if isinstance(value, Tensor))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
