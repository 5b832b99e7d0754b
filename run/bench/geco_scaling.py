"""GECO scaling benchmark: time and memory of one layer over the number of nodes, against full attention and k-MIP.

  python -m run.bench.geco_scaling                          Erdos-Renyi graphs of 2^9 to 2^21 nodes
  python -m run.bench.geco_scaling --device cuda            with FlashAttention in float16
  python -m run.bench.geco_scaling --fit RECORD.json --cells FOLDER

Graphs, width and heads of GECO's table 10. Each method is a whole layer; a pass is a forward pass without gradients
(inference) and one with gradients ("total", processor time "cpu"). A paired benchmark, see harness.py. ``--cells``
writes JSON for `run/reproduce.py`; growth.json has exponents of time and memory with 95 % confidence intervals.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import linregress, t
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from graphgps_kmip.attention import GECOAttention, GraphContext, KMIPAttention
from graphgps_kmip.attention.geco import FilterShape
from graphgps_kmip.common.atomic_write import write_json
from graphgps_kmip.errors import ConfigError, report_mistakes
from graphgps_kmip.ops import circular_convolution, row_chunks

from . import bench_records
from .harness import MIB, Bounds, Facts, NotSupported, Pass, Row, Stopwatch, measure
from .synthetic_graphs import erdos_renyi

GECO, KMIP, FULL, FLASH = "GECO", "k-MIP", "full attention", "FlashAttention float16"
NAMES = [FULL, GECO, KMIP, FLASH]
MEAN_DEGREE = 10
SMALL = 64  # nodes of the first graph, which loads and compiles
FIT_FROM = 8192  # nodes; below, the fixed cost of calls hides how the time grows
COLUMNS = (
    "n edges method inference_ms total_ms total_min_ms total_max_ms cpu_ms repeats forward_ms backward_ms memory_mib "
    "predicted_mib vs_plain cpu_vs_full status"
).split()
MEASURED = {"inference": "inference_ms", "training": "total_ms", "memory": "memory_mib"}  # column -> key of a row


@report_mistakes
def main(argv: list[str]) -> int:
    """Measure, write, print; return the exit code."""
    args = bench_records.parse(
        argv,
        __doc__,
        paired=True,
        limit=(float, 480, "seconds that the passes of a cell may take"),
        repeats=(bench_records.positive, 3, "measured passes of a cell"),
        n=(read_sizes, "512:2097152", "nodes: 512:2097152 (doubling) or 1000,100000"),
        dims=(bench_records.positive, 108, "features, and width of the layer"),
        heads=(bench_records.positive, 4, "heads of the attentions"),
        fit=(Path, None, "measure nothing, read this record of an earlier run"),
        fit_from=(bench_records.positive, FIT_FROM, "nodes from which on exponents are fitted"),
        cells=(Path, None, "folder for scaling.json, table10.json and growth.json"),
    )
    if args.fit and not args.cells:
        raise ConfigError("--fit needs --cells FOLDER, where the fitted exponents go")
    if args.fit:
        record = bench_records.read(args.fit)
        write_cells(args.cells, record["rows"], record["machine"], args.fit_from)
        return 0
    common = {key: getattr(args, key) for key in ("k", "heads", "device", "threads")}
    common |= {"bench": "geco_scaling", "setting": "layer", "data": "erdos_renyi", "dim": args.dims}
    picked = bench_records.pick(NAMES, args.methods)
    picked = [name for name in picked if name != FLASH or args.device == "cuda"]
    cells = [[common | {"method": name, "n": n} for name in picked] for n in args.n]
    report = lambda done: print(bench_records.table(done, COLUMNS), flush=True)  # noqa: E731
    rows = measure(cells, Bounds(args.repeats, args.limit), report)
    full = {row["n"]: row["cpu_ms"] for row in rows if _is_done(row, FULL)}
    for row in rows:
        if row["status"] == "ok" and row["n"] in full and args.device == "cpu":
            row["cpu_vs_full"] = full[row["n"]] / row["cpu_ms"]
    if args.cells:
        write_cells(args.cells, rows, bench_records.machine_facts(args.device, args.threads), args.fit_from)
    return bench_records.save(args, rows, COLUMNS, FULL)


def read_sizes(text: str) -> list[int]:
    """Read numbers of nodes: ``100,5000``, or ``512:4096`` for 512, 1024, .. up to 4096."""
    first, *_, last = numbers = bench_records.sizes(text)
    if ":" not in text:
        return numbers
    return [first * 2**step for step in range((last // first).bit_length())]


def predict_bytes(num_nodes: int, num_edges: int, dim: int, order: int = 2) -> int:
    """Return the peak above the inputs of forward and backward of a GECO layer on one graph in float32 on a CPU.

    Saved: features, neighbours, batch norm, gates, value, filters, their network (up to `KEEP_BYTES`), edge weights;
    backward adds gradients and spectra of a chunk of channels. N has only the prime factors 2, 3, 5 and 7.
    """
    shape, size = FilterShape(), torch.float32.itemsize
    saved = num_nodes * ((4 + 2 * order + 1) * dim + shape.places + shape.width) + num_edges
    gradients = num_nodes * (2 * order + 1) * dim
    chunk = num_nodes * count_channels(num_nodes, dim) * (2 * (order + 1) + 3 * order + 3)
    network = size * num_nodes * 3 * (shape.layers + 1) * shape.width  # linear map, product, sine
    return size * (saved + gradients + chunk) + min(row_chunks.KEEP_BYTES, network)


def count_channels(num_nodes: int, dim: int) -> int:
    """Return how many channels of one graph are convolved at a time on a CPU."""
    numbers = 2 * num_nodes
    few = min(circular_convolution.FEW_CHANNELS, circular_convolution.LARGEST_CHUNK // numbers)
    return min(dim, max(1, circular_convolution.CHUNK_NUMBERS["cpu"] // numbers, few))


def make(cell: Row, small: bool) -> tuple[Pass, Facts]:
    """Return one pass of a layer in training mode on one graph, and what gives the facts about it."""
    device, n = cell["device"], SMALL if small else cell["n"]
    graph = erdos_renyi(np.random.default_rng(0), n, MEAN_DEGREE)
    torch.manual_seed(0)
    layer = _build_layer(cell["method"], cell["dim"], cell["heads"], cell["k"]).to(device)
    dtype = next(layer.parameters()).dtype
    ptr = torch.tensor([0, n], device=device)
    batch, edge_index = torch.zeros(n, dtype=torch.long, device=device), graph.edge_index.to(device)
    x, grad = (torch.randn(n, cell["dim"]).to(device, dtype) for _ in range(2))
    x.requires_grad_()

    def context() -> GraphContext:  # a new one for each pass: a training has one for each batch
        return GraphContext(batch, ptr, edge_index)

    def run() -> dict[str, float]:
        layer.zero_grad()
        x.grad = None
        watch = Stopwatch(device)
        with torch.no_grad():
            layer(x, context())
        seconds, start = {"inference": watch.lap()}, time.process_time()
        out = layer(x, context())
        seconds["forward"] = watch.lap()
        out.backward(grad)
        seconds["backward"] = watch.lap()
        cpu = time.process_time() - start
        return seconds | {"total": seconds["forward"] + seconds["backward"], "cpu": cpu}

    facts: Row = {"edges": graph.num_edges}
    if cell["method"] == GECO and device == "cpu":
        facts["predicted_mib"] = predict_bytes(n, graph.num_edges, cell["dim"]) / MIB
    return run, lambda: facts


def _build_layer(name: str, dim: int, heads: int, k: int) -> nn.Module:
    if name == GECO:
        return GECOAttention(dim, heads)
    if name == KMIP:
        return KMIPAttention(dim, heads, 0.0, k=k)
    if name == FLASH and not torch.cuda.is_available():
        raise NotSupported("FlashAttention runs on cuda only")
    return FullLayer(dim, heads, SDPBackend.FLASH_ATTENTION).half() if name == FLASH else FullLayer(dim, heads)


class FullLayer(nn.Module):
    """Full attention of one graph by torch's ``scaled_dot_product_attention``, between its linear maps."""

    def __init__(self, dim: int, num_heads: int, backend: SDPBackend | None = None) -> None:
        super().__init__()
        self.num_heads, self.backend = num_heads, backend
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, context: GraphContext) -> Tensor:  # noqa: ARG002
        """Attend to all nodes: x (N, dim) -> (N, dim)."""
        q, k, v = self.qkv(x).unflatten(1, (3, self.num_heads, -1)).permute(1, 2, 0, 3)[:, None]  # (1, H, N, D)
        with contextlib.nullcontext() if self.backend is None else sdpa_kernel(self.backend):
            mixed = scaled_dot_product_attention(q, k, v)
        return self.out(mixed[0].transpose(0, 1).flatten(1))


def write_cells(folder: Path, rows: list[Row], machine: dict[str, Any], fit_from: int) -> None:
    """Write the tables of the experiments G-F2/T10 and G-T9."""
    hardware = {key: machine[key] for key in ("cpu", "cores", "device", "gpu", "threads", "load") if key in machine}
    shared = {"empty": _list_missing(rows), "memory_unit": "MiB", "hardware": hardware}
    contents = {"scaling": _make_scaling(rows), "table10": _make_table10(rows), "growth": growth(rows, fit_from)}
    for name, cells in contents.items():
        write_json(folder / f"{name}.json", {"cells": cells} | shared)


def _list_missing(rows: list[Row]) -> list[str]:
    failed = [f"{row['method']}, N = {row['n']}: {row['status']}" for row in rows if row["status"] != "ok"]
    return failed + [f"{FLASH} was not measured (it runs on cuda only)"] * all(row["method"] != FLASH for row in rows)


def _make_scaling(rows: list[Row]) -> dict[str, dict[str, list[float] | str]]:
    cells: dict[str, dict[str, list[float] | str]] = {}
    for row in rows:
        columns = cells.setdefault(f"N={row['n']}", {})
        for what, key in MEASURED.items():
            if row["status"] == "ok" and row.get(key) is not None:
                columns[f"{row['method']}, {what}"] = row.get(f"{key.removesuffix('_ms')}_passes_ms", [row[key]])
            elif "out of memory" in row["status"]:
                columns[f"{row['method']}, {what}"] = "OOM"
            elif "time limit" in row["status"] or "estimated" in row["status"]:
                columns[f"{row['method']}, {what}"] = "time limit"
        if row["method"] == GECO and row.get("predicted_mib"):
            columns["GECO, memory predicted"] = [row["predicted_mib"]]
    for n, full, geco in _list_pairs(rows, FULL):
        cells[f"N={n}"] |= {
            f"speed-up, {what}": [full[MEASURED[what]] / geco[MEASURED[what]]] for what in ("inference", "training")
        }
    return cells


def _make_table10(rows: list[Row]) -> dict[str, dict[str, list[float]]]:
    cells = {f"N={row['n']}": {"GECO_ms": row["inference_passes_ms"]} for row in rows if _is_done(row, GECO)}
    for n, flash, geco in _list_pairs(rows, FLASH):
        cells[f"N={n}"]["Flash_ms"] = flash["inference_passes_ms"]
        cells[f"N={n}"]["speedup"] = [flash["inference_ms"] / geco["inference_ms"]]
    return cells


def _is_done(row: Row, method: str) -> bool:
    return row["method"] == method and row["status"] == "ok"


def _list_pairs(rows: list[Row], method: str) -> Iterator[tuple[int, Row, Row]]:
    geco = {row["n"]: row for row in rows if _is_done(row, GECO)}
    yield from ((row["n"], row, geco[row["n"]]) for row in rows if _is_done(row, method) and row["n"] in geco)


def growth(rows: list[Row], fit_from: int) -> dict[str, dict[str, list[float]]]:
    """Return method -> fitted exponents, ends of their confidence intervals, and the number of sizes, at least 4."""
    cells = {}
    for method in NAMES:
        points = [row for row in rows if _is_done(row, method) and row["n"] >= fit_from]
        if len(points) < 4:
            continue
        n = np.array([row["n"] for row in points], dtype=float)
        # on a CPU processor time, which other work on the machine changes less
        seconds = [row["cpu_ms" if row["device"] == "cpu" else "total_ms"] for row in points]
        fits = {"time in N log N": fit_power_law(n * np.log2(n), seconds), "time in N": fit_power_law(n, seconds)}
        if all(row.get("memory_mib") for row in points):
            fits["memory in N"] = fit_power_law(n, [row["memory_mib"] for row in points])
        cells[method] = {"sizes": [float(len(points))]}
        for what, (exponent, low, high) in fits.items():
            cells[method] |= {what: [exponent], f"{what}, low": [low], f"{what}, high": [high]}
    return cells


def fit_power_law(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Fit ``y = a x^b`` by least squares of logarithms: b, and the ends of its 95 % confidence interval."""
    fit = linregress(np.log(x), np.log(y))
    half = t.ppf(0.975, len(x) - 2) * fit.stderr
    return float(fit.slope), float(fit.slope - half), float(fit.slope + half)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
