"""Times attention: full, fused, naive k-MIP and k-MIP by every search; or the searches alone.

  python run/bench/attention.py --setting search --n 1e3:1e5
  python run/bench/attention.py --setting training --device cuda --n 1e2:1e6
  python run/bench/attention.py --setting breakdown --n 31623

Each cell (contestant, size) has a process of its own, and all contestants of one size take turns; median, fastest and
slowest turn are kept. Frozen baselines (baselines.py) never change: --compare divides by them, so that a run on one
machine can be compared with a stored run from another.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

if not __package__:  # a script finds its own folder there, where `attention` would be a name that anyone can import
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from run.bench import figure, options
from run.bench import search_methods as contestants  # noqa: E402
from run.bench.attention_inputs import shape_of  # noqa: E402
from run.bench.bench_records import Record, make_record, read  # noqa: E402
from run.bench.harness import Bounds  # noqa: E402
from run.bench.machine import machine_facts  # noqa: E402
from run.bench.measure import measure  # noqa: E402
from run.bench.table import lines  # noqa: E402

SETTINGS = ("search", "inference", "training", "breakdown")
DEFAULT_SIZES = {"breakdown": [31623]}  # 10^4.5, as the paper's figure 3
BATCH_DIM = 16  # of --data batch:..., the width of the k-MIP models


def parse(words: list[str]) -> argparse.Namespace:
    """Return the checked command line; what the data fixes (nodes, width, heads) is filled in.

    Raises:
        ValueError: an option does not fit.
    """
    parser = options.shared_parser(__doc__)
    add = parser.add_argument
    add("--setting", choices=SETTINGS, default="inference", help="what is timed (default inference)")
    add("--data", default="gaussian", help="gaussian, unit, clustered, falling, duplicates, batch:32x480x4 or "
        "captured:FILE (default gaussian; what they are: inputs.py)")  # fmt: skip
    add("--n", type=options.sizes, metavar="SIZES", help="nodes: 1e2:1e6 (half powers of ten) or 100,5000")
    add("--dims", type=options.positive, help="channels of q, k and v in a head (default 10; batches: 16)")
    add("--heads", type=options.positive, help="attention heads (default 1)")
    add("--approximate", action="store_true", help="faiss' approximate indices too, with their recall (search)")
    add("--capture", type=Path, metavar="RUN", help="take q and k from the first layer of this trained run's model")
    args = parser.parse_args(words)
    options.check(args)
    if args.approximate and importlib.util.find_spec("faiss") is None:
        raise ValueError("--approximate: faiss, whose indices these are, is not installed: pip install faiss-cpu")
    if args.capture is not None:
        from run.bench.capture import capture  # loads GraphGym

        args.data = f"captured:{capture(args.capture, args.out)}"
    if args.stored is None:
        _fill_in(args)
    return args


def _fill_in(args: argparse.Namespace) -> None:
    fixed = shape_of(args.data)
    for option, wanted, given in (
        ("--n", args.n, None if fixed.n is None else [fixed.n]),
        ("--dims", args.dims, fixed.dim),
        ("--heads", args.heads, fixed.heads),
    ):
        if given is not None and wanted not in (None, given):
            raise ValueError(f"{option}: the data {args.data} has {given}, leave the option out")
    args.n = [fixed.n] if fixed.n else args.n or DEFAULT_SIZES.get(args.setting, options.sizes("1e2:1e5"))
    args.dims = fixed.dim or args.dims or (BATCH_DIM if args.data.startswith("batch:") else 10)
    args.heads = fixed.heads or args.heads or 1
    if args.data == "falling" and args.dims < 2:
        raise ValueError("--data falling needs two directions: give --dims 2 or more")


def measured(args: argparse.Namespace) -> Record:
    """Measure all cells and return their record."""
    reference = contestants.REFERENCE[args.setting]
    names = contestants.names(args.setting, args.device, args.approximate)
    names = options.pick(names, args.contestants, reference)
    machine = machine_facts(args.device, args.threads)
    common = {"bench": "attention", "setting": args.setting, "data": args.data, "dim": args.dims, "k": args.k}
    common |= {"heads": args.heads, "device": args.device, "threads": args.threads}
    cells = [[common | {"contestant": name, "n": n} for name in names] for n in args.n]
    rows = measure(
        cells,
        Bounds(args.repeats, args.limit),
        lambda cell: contestants.environment(cell["setting"], cell["contestant"]),
        lambda done: print("\n".join(lines(done)), flush=True),
    )
    return make_record("attention", options.options_of(args), machine, rows, reference)


def main(words: list[str]) -> int:
    """Measure (or read), write, draw, print, compare; return the exit code."""
    args = parse(words)
    record = read(args.stored) if args.stored else measured(args)
    draw = figure.draw_breakdown if record["options"]["setting"] == "breakdown" else figure.draw_sizes
    return options.finish(record, args, draw)


if __name__ == "__main__":
    options.run(main)
