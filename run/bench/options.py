"""The command line that both benchmarks share, and what they do with what was measured."""

from __future__ import annotations

import argparse
import fnmatch
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from run.bench.bench_records import COLUMNS, Record, compare, read, write
from run.bench.table import table

RESULTS = Path(__file__).resolve().parents[2] / "results" / "bench"


class Parser(argparse.ArgumentParser):
    """A parser that tells a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"error: {message}\n")


def shared_parser(description: str) -> Parser:
    """Return a parser of the options that every benchmark has; ``--help`` documents the columns."""
    columns = "\n".join(f"  {name:<14}{meaning}" for name, meaning in COLUMNS.items())
    parser = Parser(
        description=description,
        epilog=f"columns of the CSV:\n{columns}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda", "auto"), default="cpu", help="where (default cpu); auto: cuda if there")
    add("--threads", type=positive, default=torch.get_num_threads(), help="CPU threads (default %(default)s)")
    add("--k", type=positive, default=10, help="keys for each query (default 10)")
    add("--contestants", default="*", metavar="NAMES", help="comma-separated patterns, such as 'ours:*,faiss*'")
    add("--limit", type=float, default=120, help="seconds that the passes of a cell may take (default 120)")
    add("--repeats", type=positive, default=7, help="measured passes of a cell, 3 if one takes over 20 s (default 7)")
    add("--out", type=Path, default=RESULTS, metavar="FOLDER", help="where results go (default results/bench)")
    add("--name", default="", metavar="NAME", help="of the files (default: what was measured, when, with what code)")
    add("--compare", type=Path, metavar="FILE", help="a stored run: exit with 1 if a row became slower")
    add("--tolerance", type=float, default=1.3, help="how many times slower is worse (default 1.3)")
    add("--stored", type=Path, metavar="FILE", help="measure nothing: print, compare and draw this stored run")
    return parser


def positive(text: str) -> int:
    """Read an integer of at least 1; ``1e3`` is one."""
    number = float(text)
    if not 1 <= number < 1e15 or number != int(number):
        raise ValueError(text)
    return int(number)


def sizes(text: str) -> list[int]:
    """Read numbers of nodes: ``100,5000``, or ``1e2:1e6`` for half powers of ten from 10^2 to 10^6, both included."""
    if ":" not in text:
        return sorted({positive(part) for part in text.split(",")})
    first, last = (positive(part) for part in text.split(":"))
    if first > last:
        raise ValueError(text)
    steps = int(2 * math.log10(last / first) + 1e-3)
    return sorted({*(round(first * 10 ** (step / 2)) for step in range(steps + 1)), last})


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot be measured here, and take the device that ``auto`` means.

    Raises:
        ValueError: no such device, a limit or tolerance out of range, or a stored run to compare with that is none.
    """
    if args.device == "auto":
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.device == "cuda" and not torch.cuda.is_available() and args.stored is None:
        raise ValueError("--device cuda: torch finds no CUDA device, use --device cpu")
    if args.limit <= 0:
        raise ValueError(f"--limit must be positive, got {args.limit:g}")
    if args.tolerance < 1:
        raise ValueError(f"--tolerance must be at least 1, got {args.tolerance:g}")
    if args.compare is not None:
        read(args.compare)


def pick(names: list[str], patterns: str, reference: str) -> list[str]:
    """Return the names that match one of the patterns, and the reference, which every comparison needs.

    Raises:
        ValueError: a pattern matches nobody.
    """
    wanted = [pattern.strip() for pattern in patterns.split(",")]
    for pattern in wanted:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"--contestants {pattern}: nobody of this name, there are {', '.join(names)}")
    return [name for name in names if name == reference or any(fnmatch.fnmatch(name, pattern) for pattern in wanted)]


def finish(record: Record, args: argparse.Namespace, draw: Callable[[Record, Path], Path] | None = None) -> int:
    """Write, draw (if it has a picture), print and compare a record; return the exit code."""
    path = args.stored or write(record, args.out, args.name)
    picture = "" if draw is None else f"\n{draw(record, path.with_suffix('.png'))}"
    print(f"\n{table(record)}\n\n{path}\n{path.with_suffix('.csv')}{picture}")
    if args.compare is None:
        return 0
    lines, compared = compare(record, read(args.compare), args.tolerance)
    if not compared:
        print(f"error: no row of {args.compare} was measured again with its frozen baseline", file=sys.stderr)
        return 2
    print(f"\ncompared with {args.compare}: {compared} rows, {len(lines)} worse (by more than {args.tolerance:g} x)")
    print("\n".join(f"  {line}" for line in lines))
    return 1 if lines else 0


def run(main: Callable[[list[str]], int]) -> NoReturn:
    """Exit with the code of a benchmark; a mistake of the user's is one line and code 2."""
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as error:
        if "--debug" in sys.argv:
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        sys.exit(130)


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a run for its record, without where files lie on this machine."""
    left_out = ("out", "name", "compare", "stored", "tolerance", "capture")
    return {key: value for key, value in vars(args).items() if key not in left_out}
