"""Which search backend is fastest where: a map over nodes and dimensions, for keys of two geometries.

  python run/bench/winners.py
  python run/bench/winners.py --n 100,1000 --dims 3,10 --backends cpu,chunked

Each cell times every backend in turn (best of 4 turns, in this process) on one graph; the map shows the fastest, how
many times faster it is than the slowest of them, and outlines the cells where "auto" takes another one.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

# Not the folder of this file, which Python puts there: `attention` would then be a name that anyone can import.
sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.patches import Rectangle  # noqa: E402

from graphgps_kmip.common.atomic_write import replace_file  # noqa: E402
from graphgps_kmip.registry import entries  # noqa: E402
from graphgps_kmip.report.plot_style import INK, save  # noqa: E402
from graphgps_kmip.search import SearchProblem, choose, topk_inner_product  # noqa: E402
from graphgps_kmip.train.run_recording import code_version  # noqa: E402
from run.bench import options  # noqa: E402
from run.bench.attention_inputs import make_inputs  # noqa: E402

Row = dict[str, Any]

COLORS = {"tree": "#009E73", "cpu": "#56B4E9", "chunked": "#E69F00", "keops": "#CC79A7", "triton": "#D55E00"}
TURNS = 4  # the first one warms up: of the best one that is no matter
CLOSE = 1.15  # auto may take a backend that is no slower than this


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line.

    Raises:
        ValueError: a backend that does not exist.
    """
    parser = options.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--n", type=options.sizes, default=options.sizes("1e2:31623"), help="nodes (default 1e2:31623)")
    add("--dims", type=options.sizes, default=[2, 3, 5, 8, 10, 16, 32, 64], help="dimensions of a head")
    add("--data", default="gaussian,unit", help="geometries of keys (default %(default)s; inputs.py has more)")
    add("--backends", default="tree,cpu,chunked", help="who takes part (default %(default)s)")
    add("--k", type=options.positive, default=10, help="keys for each query (default 10)")
    add("--threads", type=options.positive, default=torch.get_num_threads(), help="CPU threads (default %(default)s)")
    add("--out", type=Path, default=options.RESULTS, metavar="FOLDER", help="where to write (default results/bench)")
    args = parser.parse_args(words)
    args.backends, args.data = args.backends.split(","), args.data.split(",")
    if missing := [name for name in args.backends if name not in entries("search_backend")]:
        raise ValueError(f"--backends {', '.join(missing)}: there are {', '.join(entries('search_backend'))}")
    return args


def cell(problem: SearchProblem, names: list[str]) -> dict[str, float]:
    """Return the milliseconds of each backend, its best turn."""
    best = dict.fromkeys(names, float("inf"))
    for _ in range(TURNS):
        for name in names:
            start = time.perf_counter()
            topk_inner_product(problem.q, problem.k, problem.ptr_q, problem.ptr_k, problem.num_keys, name)
            best[name] = min(best[name], 1000 * (time.perf_counter() - start))
    return best


def measure(args: argparse.Namespace) -> list[Row]:
    """Time all cells, and print one line for each."""
    rows = []
    for data in args.data:
        for n in args.n:
            for dim in args.dims:
                problem = make_inputs(data, n, dim, 1).problem(args.k)
                names = [
                    name
                    for name in args.backends
                    if not entries("search_backend")[name].traits.not_supported_reasons(problem)
                ]
                times = cell(problem, names)
                row = {"data": data, "n": n, "dim": dim, "k": args.k, "threads": args.threads}
                row |= {"winner": min(times, key=times.get), "auto": choose(problem).name}
                rows.append(row | {f"{name}_ms": ms for name, ms in times.items()})
                shown = "  ".join(f"{name} {ms:.3g}" for name, ms in times.items())
                print(f"{data}, N = {n}, d = {dim}: {shown} ms; auto: {row['auto']}", flush=True)
    return rows


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
    rows = measure(args)
    stem = args.out / f"winners-cpu-{args.threads}threads-k{args.k}-{datetime.now():%Y%m%d-%H%M%S}-{code_version()}"
    args.out.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    columns = dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(stem.with_suffix(".csv"), text.getvalue().encode())
    print(f"\n{stem.with_suffix('.csv')}\n{draw(rows, args, stem.with_suffix('.png'))}")
    return 0


if __name__ == "__main__":
    options.run(main)
