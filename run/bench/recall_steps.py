"""Associative recall benchmark: time and peak memory of a training step of each model, by the nodes of a graph.

  python -m run.bench.recall_steps --n 32,128,512,2048 --threads 1
  python -m run.bench.recall_steps --table OUT.json

Models are those of configs/LongRange/recall-*.yaml, a pass is one training step on a batch of eight rings. memory_mib
is the peak above the inputs. A paired benchmark, see harness.py. ``--table FILE`` writes JSON for recall/steps.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import Batch, Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.data.sets.long_range import CODE_LENGTHS, VALUES, draw_graph
from graphgps_kmip.encoding.expander_graph import expander_edges
from graphgps_kmip.errors import ConfigError, report_mistakes
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.network_building import build_network

from . import bench_records
from .harness import Bounds, Facts, Pass, Row, Stopwatch, measure

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "LongRange"
FILES = {
    "GCN": "gcn",
    "GPS+Transformer": "transformer",
    "GPS+kMIP": "kmip",
    "GPS+BigBird": "bigbird",
    "GPS+Performer": "performer",
    "GPS+NodeFormer": "nodeformer",
    "GPS+DIFFormer": "difformer",
    "GPS+GECO": "geco",
    "GPS+Hyena": "hyena",
    "Exphormer": "exphormer",
}
SMALL = 32  # nodes of the first graphs, which load and compile
COLUMNS = "method n total_ms total_min_ms total_max_ms repeats memory_mib status".split()


@report_mistakes
def main(argv: list[str]) -> int:
    """Measure, write, print; return the exit code."""
    args = bench_records.parse(
        argv,
        __doc__,
        paired=True,
        n=(bench_records.sizes, ",".join(map(str, CODE_LENGTHS)), "nodes of a graph, comma-separated"),
        graphs=(bench_records.positive, 8, "graphs of a batch"),
        table=(Path, None, "JSON file for the experiment recall/steps"),
    )
    if wrong := [n for n in args.n if n not in CODE_LENGTHS]:
        raise ConfigError(f"--n {wrong[0]}: the data sets have {', '.join(map(str, CODE_LENGTHS))} nodes")
    names = bench_records.pick(list(FILES), args.methods)
    common = {"bench": "recall_steps", "data": "recall", "graphs": args.graphs}
    common |= {"device": args.device, "threads": args.threads}
    cells = [[common | {"method": name, "n": n} for name in names] for n in args.n]
    rows = measure(cells, Bounds(args.repeats, args.limit), lambda done: print(bench_records.table(done, COLUMNS)))
    return bench_records.save(args, rows, COLUMNS, table_content=make_table(rows))


def make_table(rows: list[Row]) -> dict[str, Any]:
    """Return the cells of the experiment's tables: row ``N=128``, columns ``<model>, step`` and ``<model>, memory``."""
    cells: dict[str, dict[str, Any]] = {}
    for row in rows:
        done = row["status"] == "ok"
        numbers = ([row["total_ms"]], [row["memory_mib"]]) if done else (row["status"],) * 2
        for kind, number in zip(("step", "memory"), numbers, strict=True):
            cells.setdefault(f"N={row['n']}", {})[f"{row['method']}, {kind}"] = number
    return {"cells": cells}


def make(cell: Row, small: bool) -> tuple[Pass, Facts]:
    """Return one training step, and its facts."""
    nodes, device = SMALL if small else cell["n"], cell["device"]
    load_config(cfg, CONFIGS / f"recall-{FILES[cell['method']]}.yaml", [])
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    graphs = [_draw(rng, nodes) for _ in range(cell["graphs"])]
    cfg.share.dim_in = graphs[0].num_node_features
    model = build_network(cfg.model.type, cfg.share.dim_in, VALUES).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)  # as in training
    whole = Batch.from_data_list(graphs).to(device)

    def run() -> dict[str, float]:
        watch = Stopwatch(device)
        optimizer.zero_grad()
        batch = copy.copy(whole)
        batch.split = "train"
        prediction, label = model(batch)
        cross_entropy(prediction, label).backward()
        optimizer.step()
        return {"total": watch.lap()}

    return run, lambda: {"graphs": len(graphs)}


def _draw(rng: np.random.Generator, nodes: int) -> Data:
    graph = draw_graph(rng, nodes, CODE_LENGTHS[nodes])
    if cfg.prep.exp:
        draw = {"rng": rng, "check_spectrum": False}
        graph.expander_edge_index = expander_edges(nodes, cfg.prep.exp_deg, cfg.prep.exp_algorithm, **draw)
    return graph


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
