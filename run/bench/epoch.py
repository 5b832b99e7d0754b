"""Times whole training epochs of our loop and of a stand-in for the stock code, on the same batches.

  python run/bench/epoch.py                                graphs like those of PascalVOC-SP and of MalNet-Tiny
  python run/bench/epoch.py --data pascalvoc --attn-dropout 0 --threads 2

The model is GraphGPS's for the data set: GatedGCN and full attention, with as many parameters in both. The stand-in
(stock.py) is written on torch_geometric's MessagePassing, `to_dense_batch` and `nn.MultiheadAttention`; ours with k-MIP
attention stands beside them. Each has a process of its own, and they take turns, an epoch a turn, metrics included.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if not __package__:  # a script finds its own folder there, where `attention` would be a name that anyone can import
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from run.bench import epochs, options  # noqa: E402
from run.bench.bench_records import Record, make_record, read  # noqa: E402
from run.bench.harness import Bounds, Row  # noqa: E402
from run.bench.machine import machine_facts  # noqa: E402
from run.bench.measure import measure  # noqa: E402
from run.bench.synthetic_graphs import SHAPES, draw, nodes_of  # noqa: E402
from run.bench.table import lines, number  # noqa: E402

LIMIT = 1200  # seconds: the stand-in takes a minute for an epoch
HEADINGS = "| data | graphs | nodes | attention dropout | who | s / epoch | nodes / s | times the stand-in | MiB |"


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line.

    Raises:
        ValueError: an option does not fit.
    """
    parser = options.shared_parser(__doc__)
    parser.set_defaults(limit=LIMIT)
    add = parser.add_argument
    add("--data", default=",".join(SHAPES), help="comma-separated: pascalvoc, malnet (default both)")
    add("--graphs", type=options.positive, help="graphs of an epoch (default: 128 of pascalvoc, 48 of malnet)")
    add("--attn-dropout", type=float, metavar="P", help="of attention weights (default 0.5 in pascalvoc, 0 in malnet)")
    args = parser.parse_args(words)
    options.check(args)
    for name in args.data.split(","):
        if name not in SHAPES:
            raise ValueError(f"--data {name}: unknown, choose {' or '.join(SHAPES)}")
    if args.attn_dropout is not None and not 0 <= args.attn_dropout < 1:
        raise ValueError(f"--attn-dropout must be in [0, 1), got {args.attn_dropout:g}")
    args.setting = "epoch"
    shapes = [SHAPES[name] for name in args.data.split(",")]
    args.dims, args.heads = (max(getattr(shape, size) for shape in shapes) for size in ("dim", "heads"))
    return args


def cells_of(args: argparse.Namespace) -> list[list[Row]]:
    """Return what the processes are told: for each data set, each contestant."""
    names = options.pick(epochs.names(), args.contestants, epochs.STOCK)
    cells = []
    for data in args.data.split(","):
        shape = SHAPES[data]
        graphs = args.graphs or shape.num_graphs
        common = {"bench": "epoch", "setting": "epoch", "data": data, "graphs": graphs, "k": args.k}
        common |= {"n": nodes_of(draw(shape, graphs)), "dim": shape.dim, "heads": shape.heads}
        common |= {"device": args.device, "threads": args.threads}
        common["attn_dropout"] = shape.attn_dropout if args.attn_dropout is None else args.attn_dropout
        cells.append([common | {"contestant": name} for name in names])
    return cells


def measured(args: argparse.Namespace) -> Record:
    """Measure all cells and return their record."""
    cells, machine = cells_of(args), machine_facts(args.device, args.threads)
    bounds = Bounds(args.repeats, args.limit)
    rows = measure(cells, bounds, lambda cell: {}, lambda done: print("\n".join(lines(done)), flush=True))  # noqa: ARG005
    return make_record("epoch", options.options_of(args), machine, rows, epochs.STOCK)


def markdown(record: Record) -> str:
    """Return the rows as a table in Markdown; those without a result say why."""
    result = [HEADINGS, "|---" * HEADINGS[1:].count("|") + "|"]
    for row in record["rows"]:
        facts = [row[key] for key in ("data", "graphs", "n", "attn_dropout", "contestant")]
        values = [row["status"], None, None, None]
        if row["status"] == "ok":
            values = [row["total_ms"] / 1000, row["nodes_per_s"], row.get("vs_frozen"), row.get("memory_mib")]
        result.append("| " + " | ".join(number(value) for value in (*facts, *values)) + " |")
    return "\n".join(result)


def main(words: list[str]) -> int:
    """Measure (or read), write, print, compare; return the exit code."""
    args = parse(words)
    record = read(args.stored) if args.stored else measured(args)
    print(f"\n{markdown(record)}")
    return options.finish(record, args)


if __name__ == "__main__":
    options.run(main)
