"""Large-graph benchmark: one training step of GPS + k-MIP on a road graph of London's size, layer by layer.

  python -m run.bench.large_graph
  python -m run.bench.large_graph --nodes 50000 --edges 66700 --set 'share.gradient_checkpointing False'

The model is that of a YAML file (default: configs/City-Networks/london-kmip.yaml with 8 layers of width 68, and
share.gradient_checkpointing True), the graph that of synthetic_graphs.py with random features and labels. Columns:
seconds since the line above; rss_mib, the resident memory of the process at that point; peak_mib, its largest since the
line above; tensors_mib and tensors_peak_mib, the same of what tensors hold, which is what a GPU has to hold, too (its
allocator and the workspace of its own search come on top). A line "backward of layers.i" begins when the gradient of
its output is there, and includes its second forward pass.
"""

from __future__ import annotations

import argparse
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch_geometric.data import Batch
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.gym.building.network_building import build_network
from graphgps_kmip.gym.config.config_loading import load_config

from . import bench_records
from .harness import CLEAR_REFS, MIB, Row, resident_mib
from .synthetic_graphs import road_graph

COLUMNS = ["stage", "seconds", "rss_mib", "peak_mib", "tensors_mib", "tensors_peak_mib"]
LONDON = Path(__file__).resolve().parents[2] / "configs/City-Networks/london-kmip.yaml"
SETTINGS = ["gt.layers", "8", "gt.dim_hidden", "68", "gnn.dim_inner", "68", "share.gradient_checkpointing", "True"]
FEATURES, CLASSES = 67, 10  # of City-Networks


class StageLog(TorchDispatchMode):
    """Rows of time and memory, one for each stage; counts the bytes of all storages that operations hold, and made."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, int] = {}
        self.rows: list[Row] = []
        self.bytes = self.peak = self.made = 0
        self._begin()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ARG002
        """Run an operation, and count the storages of its new tensors until they are freed."""
        out = func(*args, **(kwargs or {}))
        for storage in (value.untyped_storage() for value in tree_iter(out) if isinstance(value, Tensor)):
            if storage._cdata not in self.known and storage.nbytes():
                self.known[storage._cdata] = storage.nbytes()
                self.bytes += storage.nbytes()
                self.made += storage.nbytes()
                self.peak = max(self.peak, self.bytes)
                weakref.finalize(storage, self._freed, storage._cdata)
        return out

    def _freed(self, key: int) -> None:
        self.bytes -= self.known.pop(key, 0)

    def end(self, stage: str) -> None:
        """Write the row of what has happened since the last one."""
        values = (stage, time.perf_counter() - self.start, resident_mib("VmRSS"), resident_mib("VmHWM"))
        self.rows.append(dict(zip(COLUMNS, (*values, self.bytes / MIB, self.peak / MIB), strict=True)))
        print(" ".join(map(bench_records.number, self.rows[-1].values())), flush=True)
        self._begin()

    def _begin(self) -> None:
        CLEAR_REFS.write_text("5")  # resets VmHWM, the largest resident size so far
        self.peak = self.bytes
        self.start = time.perf_counter()


def large_graph(num_nodes: int, num_edges: int) -> Batch:
    """Return the road graph with random features and labels, a tenth of the nodes for training."""
    generator = torch.Generator().manual_seed(0)
    graph = road_graph(np.random.default_rng(0), num_nodes, num_edges)
    graph.x = torch.randn(num_nodes, FEATURES, generator=generator)
    graph.y = torch.randint(CLASSES, (num_nodes,), generator=generator)
    graph.train_mask = torch.rand(num_nodes, generator=generator) < 0.1
    batch = Batch.from_data_list([graph])
    batch.split = "train"
    return batch


def _watch(model: nn.Module, log: StageLog) -> None:
    """Log encoder, layers and head, forward and backward."""
    stages = {"encoder": model.encoder, **{f"layers.{i}": layer for i, layer in enumerate(model.layers)}}
    for (name, module), following in zip(stages.items(), [*stages, "head"][1:], strict=True):

        def hook(_module: nn.Module, _args: Any, out: Any, name: str = name, following: str = following) -> None:
            if stages.pop(name, None) is not None:  # else the second forward pass of a recomputed layer
                log.end(f"forward of {name}")
                x = out.x if name == "encoder" else out[0]
                x.register_hook(lambda _: log.end(f"backward of {following}"))

        module.register_forward_hook(hook)


def step(args: argparse.Namespace) -> list[Row]:
    """Make graph and model, and run one training step; return the log's rows."""
    torch.set_num_threads(args.threads)
    load_config(cfg, args.cfg, [*SETTINGS, *args.set])
    cfg.share.dim_in = FEATURES
    torch.manual_seed(0)
    model = build_network("GPSModel", FEATURES, CLASSES)
    optimizer = torch.optim.AdamW(model.parameters())
    with StageLog() as log:
        batch = large_graph(args.nodes, args.edges)
        log.end("data")
        _watch(model, log)
        loss = nn.functional.cross_entropy(*model(batch))
        log.end("forward of head and loss")
        loss.backward()
        log.end("backward of encoder")
        optimizer.step()
        log.end("optimizer")
    if not all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None):
        raise ValueError("a gradient is not finite")
    total = {"stage": "whole step", "seconds": sum(row["seconds"] for row in log.rows[1:])}
    return [*log.rows, total | {key: max(row[key] for row in log.rows) for key in COLUMNS[2:]}]


def main(words: list[str]) -> int:
    """Measure, print, write; return the exit code."""
    args = bench_records.parse(
        words,
        __doc__,
        nodes=(bench_records.positive, 569_000, "nodes of the graph; 569000: London"),
        edges=(bench_records.positive, 759_000, "undirected edges"),
        cfg=(Path, LONDON, "YAML file of the model"),
        set=(str.split, "", "settings of the YAML file to change, in quotes: 'KEY VALUE ...'"),
    )
    rows = step(args)
    args.cfg = args.cfg.name
    return bench_records.save("large_graph", args, rows, COLUMNS)


if __name__ == "__main__":
    bench_records.run(main)
