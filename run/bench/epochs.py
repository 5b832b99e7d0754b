"""Epoch benchmark: training epochs of YAML files, public ones too, on synthetic graphs of the sizes of their data sets.

  python -m run.bench.epochs --cfg ../GraphGPS/configs/GPS/vocsuperpixels-GPS.yaml --graphs 32 --threads 2
  python -m run.bench.epochs --cfg FILE --write graphs.pt     and the graphs, to train other code on

An epoch is that of `main.py`, with loading and metrics. Several files, separated by commas, take turns, see harness.py.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from graphgps_kmip import DatasetRecord, register_dataset
from graphgps_kmip.common.environment import find_config
from graphgps_kmip.common.signals import StopSignals
from graphgps_kmip.common.yaml_files import read_yaml
from graphgps_kmip.data import GraphDataset, find
from graphgps_kmip.errors import ConfigError, report_mistakes
from graphgps_kmip.gym.data_loading import current_loaders
from graphgps_kmip.gym.experiment import assemble, launch
from graphgps_kmip.gym.planned_runs import configured, load_settings, planned_runs
from graphgps_kmip.gym.train_modes import current_optimizer, current_settings, current_task
from graphgps_kmip.train.loop import Session, run_epoch

from . import bench_records
from .harness import Bounds, Facts, Pass, Row, Stopwatch, measure
from .synthetic_graphs import call_graph, co_purchases, molecule, superpixels

CONFIGS = "pascalvoc-transformer pascalvoc-kmip pascalvoc-gatedgcn pascalvoc-exphormer".split()
GRAPHS: dict[str, Callable[[np.random.Generator], Data]] = {
    "PascalVOC-SP": superpixels,
    "ZINC": molecule,
    "MalNet-Tiny": call_graph,
    "Amazon-Computers": co_purchases,
}
COLUMNS = "method params data graphs n seconds cpu_s nodes_per_s memory_mib status".split()
WARM_UP_GRAPHS = 2


@report_mistakes
def main(argv: list[str]) -> int:
    """Measure, write, print; return the exit code."""
    args = bench_records.parse(
        argv,
        __doc__,
        paired=True,
        cfg=(str, ",".join(f"configs/LRGB/{name}.yaml" for name in CONFIGS), "comma-separated YAML files"),
        graphs=(bench_records.positive, 32, "graphs of an epoch"),
        write=(Path, None, "file for the graphs of the last file, a list of torch_geometric Data with its encodings"),
    )
    groups: dict[str, list[Row]] = {}
    for name in args.cfg.split(","):
        record = find_record(find_config(name))
        data = record.title
        graphs = draw(data, 1 if record.level == "node" else args.graphs)
        nodes = sum(graph.num_nodes for graph in graphs)
        cell = {"bench": "epochs", "setting": "epoch", "data": data, "graphs": len(graphs), "n": nodes, "cfg": name}
        cell |= {"method": Path(name).stem, "device": args.device, "threads": args.threads, "write": args.write}
        groups.setdefault(data, []).append(cell)
    rows = measure(list(groups.values()), Bounds(args.repeats, args.limit))
    for row in rows:
        if row["status"] == "ok":
            row |= {"seconds": row["total_ms"] / 1000, "cpu_s": row["cpu_ms"] / 1000}
            row["nodes_per_s"] = 1000 * row["n"] / row["total_ms"]
    return bench_records.save(args, rows, COLUMNS)


def find_record(file: Path) -> DatasetRecord:
    """Return the record of the data set of a YAML file, which must be one of `GRAPHS`."""
    dataset = read_yaml(file).get("dataset", {})
    record = find(dataset.get("format", ""), dataset.get("name", ""))
    if record.title not in GRAPHS:
        raise ConfigError(f"--cfg {file}: its data set is {record.title}, there are graphs like {', '.join(GRAPHS)}")
    return record


def draw(data: str, num_graphs: int) -> list[Data]:
    """Return the same graphs at each call."""
    rng = np.random.default_rng(0)
    return [GRAPHS[data](rng) for _ in range(num_graphs)]


def make(cell: Row, small: bool) -> tuple[Pass, Facts]:
    """Return one pass, a training epoch with its metrics, and the number of parameters."""
    file = find_config(cell["cfg"])
    record, size = find_record(file), WARM_UP_GRAPHS if small else cell["graphs"]
    if record.level == "node":
        dataset = GraphDataset(draw(cell["data"], 1))
    else:  # a graph each for validation and test, which no pass reads
        dataset = GraphDataset(draw(cell["data"], size + 2), torch.arange(size + 2).split([size, 1, 1]))
    fields = {"format": "Synthetic", "name": cell["data"] + "-small" * small, "raw": None, "statistics": None}
    record = register_dataset(replace(record, **fields, load=lambda _root: dataset))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        places = ["dataset.format", record.format, "dataset.name", record.name, "dataset.dir", folder]
        load_settings(file, [*places, "out_dir", folder, "accelerator", cell["device"]])
        stack.enter_context(configured(planned_runs(repeat=1)[0]))
        parts, fabric = assemble(), launch()
        torch.set_num_threads(cell["threads"])
        loader = current_loaders(parts.dataset, parts.info.level, fabric)[0]
        optimizer = current_optimizer(parts.model)
        num_params = sum(parameter.numel() for parameter in parts.model.parameters())
        task, settings = current_task(parts.info.dim_out), current_settings()
        session = Session(fabric, *fabric.setup(parts.model, optimizer), task, settings, StopSignals(), num_params)
        if cell["write"] and not small:
            torch.save([graph for graph, _ in zip(parts.dataset.graphs, range(size), strict=False)], cell["write"])
    number = count()

    def run() -> dict[str, float]:
        watch, start = Stopwatch(cell["device"]), time.process_time()
        run_epoch(session, loader, "train", next(number))
        return {"total": watch.lap(), "cpu": time.process_time() - start}

    return run, lambda: {"params": num_params}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
