"""Times one whole GPS layer, GatedGCN beside each registered attention: forward and backward.

  python run/bench/layer.py                         32 graphs of 480 nodes, and single graphs of 10^3 to 10^5 nodes
  python run/bench/layer.py --n 50000               the batch, and one graph of 50,000 nodes
  python run/bench/layer.py --n 1e3:1e6 --device cuda --contestants 'kMIP,Transformer'

A new row of the package's table of attentions takes part by itself. Beside Performer, BigBird and Exphormer stand their
formulas as the tests hold them (references.py), those of the first two with all N x N pairs. Each cell has a process of
its own, and all layers of one size take turns; what runs out of memory or time is a row that says so.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if not __package__:  # a script finds its own folder there, where `attention` would be a name that anyone can import
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from run.bench import figure, gps, options  # noqa: E402
from run.bench.attention_inputs import shape_of  # noqa: E402
from run.bench.bench_records import Record, make_record, read  # noqa: E402
from run.bench.harness import Bounds  # noqa: E402
from run.bench.machine import machine_facts  # noqa: E402
from run.bench.measure import measure  # noqa: E402
from run.bench.table import lines  # noqa: E402


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line.

    Raises:
        ValueError: an option does not fit.
    """
    parser = options.shared_parser(__doc__)
    add = parser.add_argument
    add("--n", type=options.sizes, default=options.sizes("1e3:1e5"), metavar="SIZES", help="nodes of single graphs: "
        "1e3:1e5 (half powers of ten, default) or 1000,5000")  # fmt: skip
    add("--batch", default="32x480", metavar="GRAPHSxNODES", help="a batch beside them (default 32x480), or none")
    add("--dims", type=options.positive, default=64, help="width of the layer (default 64)")
    add("--heads", type=options.positive, default=4, help="attention heads (default 4)")
    args = parser.parse_args(words)
    options.check(args)
    if args.dims % args.heads:
        raise ValueError(f"--dims must be divisible by --heads, got {args.dims} and {args.heads}")
    args.setting, args.data = "layer", "single" if args.batch == "none" else f"single+{args.batch}"
    return args


def measured(args: argparse.Namespace) -> Record:
    """Measure all cells and return their record."""
    names = options.pick(gps.names(), args.contestants, gps.FROZEN)
    common = {"bench": "layer", "setting": "layer", "dim": args.dims, "k": args.k, "heads": args.heads}
    common |= {"device": args.device, "threads": args.threads}
    places = [("single", n) for n in args.n]
    if args.batch != "none":
        batch = f"batch:{args.batch}x{args.heads}"
        places.insert(0, (batch, shape_of(batch).n))
    cells = [[common | {"contestant": name, "data": data, "n": n} for name in names] for data, n in places]
    machine = machine_facts(args.device, args.threads)
    bounds = Bounds(args.repeats, args.limit)
    rows = measure(cells, bounds, lambda cell: {}, lambda done: print("\n".join(lines(done)), flush=True))  # noqa: ARG005
    return make_record("layer", options.options_of(args), machine, rows, gps.FROZEN)


def main(words: list[str]) -> int:
    """Measure (or read), write, draw, print, compare; return the exit code."""
    args = parse(words)
    record = read(args.stored) if args.stored else measured(args)
    return options.finish(record, args, figure.draw_layers)


if __name__ == "__main__":
    options.run(main)
