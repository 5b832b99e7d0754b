"""``python -m graphgps_kmip.check``: kernels, components and laws on this machine against plain float64 on the CPU.

Exit code 0 if all is right, 1 if something is wrong, 2 after a mistake on the command line.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from graphgps_kmip.common.near_misses import suggest

PARTS = ("kernels", "components", "laws", "speed")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments; ends the process with code 2 after a mistake. No torch is loaded for that."""
    parser = argparse.ArgumentParser(
        prog="python -m graphgps_kmip.check",
        description="Kernels, components and laws on this machine against plain float64 on the CPU: a table.",
    )
    parser.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu, cuda, cuda:1, ...")
    parser.add_argument("--only", type=_parts, default=PARTS, help=f"of {','.join(PARTS)}, joined by commas")
    parser.add_argument(
        "--attention", action="append", default=[], metavar="MODULE:CLASS", help="the laws of this class alone"
    )
    parser.add_argument("--json", type=Path, help="write everything to this file, to be attached to an issue")
    parser.add_argument("--debug", action="store_true", help="show the traceback of what is wrong")
    return parser.parse_args(argv)


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(text.split(","))
    for part in parts:
        if part not in PARTS:
            raise argparse.ArgumentTypeError(f"unknown part {part!r}.{suggest(part, PARTS)}")
    return parts


if __name__ == "__main__":
    arguments = parse()
    from graphgps_kmip.testing.machine_check import run

    sys.exit(run(arguments))
