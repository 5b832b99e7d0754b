"""One training step of GPS + k-MIP on a map of London's size: seconds and memory, layer by layer.

  python run/bench/large_graph.py
  python run/bench/large_graph.py --nodes 50000 --edges 66700 --set share.gradient_checkpointing False

The model is that of a YAML file (default: configs/City-Networks/london-kmip.yaml with 8 layers of width 68, and
share.gradient_checkpointing True), the graph `run/bench/roads.py`'s with random features and labels. Columns: seconds
since the line above; rss_mib, the resident memory of the process at that point; peak_mib, its largest since the line
above; tensors_mib and tensors_peak_mib, the same of what tensors hold, which is what a GPU has to hold, too (its
allocator and the workspace of its own search come on top). A line "backward of layers.i" begins when the gradient of
its output is there, and includes its second forward pass.
"""

from __future__ import annotations

import argparse
import sys
import time
import weakref
from pathlib import Path
from typing import Any

# Not the folder of this file, which Python puts there: `attention` would then be a name that anyone can import.
sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_iter  # noqa: E402
from torch_geometric.data import Batch  # noqa: E402
from torch_geometric.graphgym.config import cfg  # noqa: E402

from graphgps_kmip.gym.load import load_config  # noqa: E402
from graphgps_kmip.gym.network_building import build_network  # noqa: E402
from run.bench import options  # noqa: E402
from run.bench.knn_graphs import table, write  # noqa: E402
from run.bench.memory import CLEAR_REFS, MIB, _status_kib  # noqa: E402
from run.bench.roads import road_map  # noqa: E402

COLUMNS = ["stage", "seconds", "rss_mib", "peak_mib", "tensors_mib", "tensors_peak_mib"]
LONDON = Path(sys.path[0]) / "configs/City-Networks/london-kmip.yaml"
SETTINGS = ["gt.layers", "8", "gt.dim_hidden", "68", "gnn.dim_inner", "68", "share.gradient_checkpointing", "True"]
FEATURES, CLASSES = 67, 10  # of City-Networks


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of all storages that operations made and that are still held."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, int] = {}
        self.bytes = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ARG002
        """Run an operation, and note what is new."""
        out = func(*args, **(kwargs or {}))
        for value in tree_iter(out):
            if isinstance(value, Tensor):
                self.note(value)
        return out

    def note(self, tensor: Tensor) -> None:
        """Count the storage of a tensor from now until it is freed."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.known and storage.nbytes():
            self.known[key] = storage.nbytes()
            self.bytes += storage.nbytes()
            self.peak = max(self.peak, self.bytes)
            weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        self.bytes -= self.known.pop(key, 0)


class Diary:
    """Lines of time and memory, one for each stage of the step."""

    def __init__(self, live: LiveTensors) -> None:
        self.rows: list[dict[str, Any]] = []
        self.live = live
        self._begin()

    def end(self, stage: str) -> None:
        """Write the line of what has happened since the last one."""
        row = {"stage": stage, "seconds": time.perf_counter() - self.start, "rss_mib": _status_kib("VmRSS") / 1024}
        row |= {"peak_mib": _status_kib("VmHWM") / 1024}
        row |= {"tensors_mib": self.live.bytes / MIB, "tensors_peak_mib": self.live.peak / MIB}
        self.rows.append(row)
        print(table([row], COLUMNS).splitlines()[-1], flush=True)
        self._begin()

    def _begin(self) -> None:
        CLEAR_REFS.write_text("5")  # resets VmHWM, the largest resident size so far
        self.live.peak = self.live.bytes
        self.start = time.perf_counter()


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    parser = options.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--nodes", type=options.positive, default=569_000, help="nodes of the map (default 569000, London)")
    add("--edges", type=options.positive, default=759_000, help="undirected edges (default 759000)")
    add("--cfg", type=Path, default=LONDON, help="YAML file of the model (default: London's)")
    add("--set", nargs="*", default=[], metavar="KEY VALUE", help="settings of the YAML file to change")
    add("--threads", type=options.positive, default=torch.get_num_threads(), help="CPU threads (default %(default)s)")
    add("--out", type=Path, default=options.RESULTS, metavar="FOLDER", help="where results go (default results/bench)")
    return parser.parse_args(words)


def large_graph(num_nodes: int, num_edges: int) -> Batch:
    """Return the map with random features and labels, a tenth of the nodes for training."""
    generator = torch.Generator().manual_seed(0)
    graph = road_map(np.random.default_rng(0), num_nodes, num_edges)
    graph.x = torch.randn(num_nodes, FEATURES, generator=generator)
    graph.y = torch.randint(CLASSES, (num_nodes,), generator=generator)
    graph.train_mask = torch.rand(num_nodes, generator=generator) < 0.1
    batch = Batch.from_data_list([graph])
    batch.split = "train"
    return batch


def watch(model: nn.Module, diary: Diary) -> None:
    """Let encoder, layers and head write into the diary, forward and backward."""
    stages = {"encoder": model.encoder, **{f"layers.{i}": layer for i, layer in enumerate(model.layers)}}
    names = [*stages, "head"]
    seen: set[str] = set()

    def after(name: str) -> Any:
        def hook(module: nn.Module, args: Any, out: Any) -> None:  # noqa: ARG001
            if name in seen:  # the second forward pass of a recomputed layer
                return
            seen.add(name)
            diary.end(f"forward of {name}")
            x = out.x if name == "encoder" else out[0]
            x.register_hook(lambda _: diary.end(f"backward of {names[names.index(name) + 1]}"))

        return hook

    for name, module in stages.items():
        module.register_forward_hook(after(name))


def step(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Make graph and model, and run one training step; return the diary's lines."""
    torch.set_num_threads(args.threads)
    load_config(cfg, args.cfg, [*SETTINGS, *args.set])
    cfg.share.dim_in = FEATURES
    torch.manual_seed(0)
    model = build_network("GPSModel", FEATURES, CLASSES)
    optimizer = torch.optim.AdamW(model.parameters())
    with LiveTensors() as live:
        diary = Diary(live)
        batch = large_graph(args.nodes, args.edges)
        diary.end("data")
        watch(model, diary)
        pred, true = model(batch)
        loss = nn.functional.cross_entropy(pred, true)
        diary.end("forward of head and loss")
        loss.backward()
        diary.end("backward of encoder")
        optimizer.step()
        diary.end("optimizer")
    if not all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None):
        raise ValueError("a gradient is not finite")
    total = {"stage": "whole step", "seconds": sum(row["seconds"] for row in diary.rows[1:])}
    return [*diary.rows, total | {key: max(row[key] for row in diary.rows) for key in COLUMNS[2:]}]


def main(words: list[str]) -> int:
    """Measure, print, write; return the exit code."""
    args = parse(words)
    rows = step(args)
    args.set = " ".join(args.set)
    args.cfg = args.cfg.name
    paths = write("large_graph", args, rows, COLUMNS)
    print("\n".join(["", table(rows, COLUMNS), "", *map(str, paths)]))
    return 0


if __name__ == "__main__":
    options.run(main)
