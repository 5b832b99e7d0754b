"""Search backend benchmark: which backend is fastest where, as a map over nodes and dimensions.

  python -m run.bench.winners
  python -m run.bench.winners --n 100,1000 --dims 3,10 --backends cpu,chunked

In each cell the backends are timed alternately (best of 4 passes, in this process) on one graph; the map shows the
fastest, how many times faster it is than the slowest of them, and outlines the cells where "auto" takes another one.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from graphgps_kmip.registry import entries
from graphgps_kmip.report.learning_curves import INK, save
from graphgps_kmip.search import choose, topk_inner_product

from . import bench_records
from .attention_inputs import make_inputs
from .harness import Row, alternate

BACKENDS = entries("search_backend")
COLORS = {"tree": "#009E73", "cpu": "#56B4E9", "chunked": "#E69F00", "keops": "#CC79A7", "triton": "#D55E00"}
PASSES = 4  # the first one warms up: of the best one that is no matter
CLOSE = 1.15  # auto may take a backend that is no slower than this


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line."""
    args = bench_records.parse(
        words,
        __doc__,
        n=(bench_records.sizes, "1e2:31623", "nodes"),
        dims=(bench_records.sizes, "2,3,5,8,10,16,32,64", "dimensions of a head"),
        data=(str, "gaussian,unit", "geometries of keys, see attention_inputs.py"),
        backends=(str, "tree,cpu,chunked", "which"),
        k=(bench_records.positive, 10, "keys for each query"),
    )
    args.backends = bench_records.listed("backends", args.backends, BACKENDS)
    args.data = args.data.split(",")
    return args


def cell(data: str, n: int, dim: int, args: argparse.Namespace) -> Row:
    """Return the milliseconds of each backend, its best pass, the fastest of them and the one that auto takes.

    "processor" is the least processor time of a pass, of all threads, which other work on the machine changes less.
    """
    problem = make_inputs(data, n, dim, 1).problem(args.k)
    names = [name for name in args.backends if not BACKENDS[name].traits.not_supported_reasons(problem)]
    search = partial(topk_inner_product, problem.q, problem.k, problem.ptr_q, problem.ptr_k, problem.num_keys)
    passes = alternate({name: partial(search, name) for name in names}, PASSES, warm_up=False)
    times = {name: 1000 * min(seconds for seconds, _ in of_name) for name, of_name in passes.items()}
    row = {"data": data, "n": n, "dim": dim, "k": args.k, "threads": args.threads}
    row |= {"winner": min(times, key=times.get), "auto": choose(problem).name}
    row |= {f"{name}_ms": ms for name, ms in times.items()}
    return row | {f"{name}_processor_ms": 1000 * min(cpu for _, cpu in of_name) for name, of_name in passes.items()}


def draw(rows: list[Row], args: argparse.Namespace, path: Path) -> Path:
    """Draw one map for each geometry."""
    figure = Figure(figsize=(1.2 + 4.2 * len(args.data), 4.4), layout="constrained")
    for axes, data in zip(figure.subplots(1, len(args.data), squeeze=False)[0], args.data, strict=True):
        for row in (row for row in rows if row["data"] == data):
            times = {name: row[f"{name}_ms"] for name in args.backends if f"{name}_ms" in row}
            x, y = args.n.index(row["n"]), args.dims.index(row["dim"])
            axes.add_patch(Rectangle((x, y), 1, 1, color=COLORS.get(row["winner"], "#8C959F"), ec="white", lw=1))
            if times.get(row["auto"], 0) > CLOSE * times[row["winner"]]:
                axes.add_patch(Rectangle((x + 0.05, y + 0.05), 0.9, 0.9, fill=False, ec=INK, lw=1.2))
            ratio = max(times.values()) / times[row["winner"]]
            axes.text(x + 0.5, y + 0.5, f"{ratio:.2g}×", ha="center", va="center", fontsize=8, color=INK)
        axes.set(xlim=(0, len(args.n)), ylim=(0, len(args.dims)), xlabel="nodes", title=f"{data} keys")
        axes.set_xticks([i + 0.5 for i in range(len(args.n))], [f"{n:g}" for n in args.n], fontsize=8)
        axes.set_yticks([i + 0.5 for i in range(len(args.dims))], [str(dim) for dim in args.dims], fontsize=8)
    figure.axes[0].set_ylabel("dimensions of a head")
    handles = [Rectangle((0, 0), 1, 1, color=COLORS.get(name, "#8C959F"), label=name) for name in args.backends]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    what = f"fastest search, and times faster than the slowest (k = {args.k}, {args.threads} threads)"
    figure.suptitle(f"{what}; outlined: auto takes another", fontsize=9)
    return save(figure, path)


def main(words: list[str]) -> int:
    """Measure, write, draw; return the exit code."""
    args = parse(words)
    torch.set_num_threads(args.threads)
    rows = []
    for data in args.data:
        for n in args.n:
            rows += [cell(data, n, dim, args) for dim in args.dims]
            print(bench_records.table(rows[-len(args.dims) :], rows[-1]), flush=True)
    _, path = bench_records.write("winners", args, rows)
    print(f"{path}\n{draw(rows, args, path.with_suffix('.png'))}")
    return 0


if __name__ == "__main__":
    bench_records.run(main)
