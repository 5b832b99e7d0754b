"""Arguments of ``python -m graphgps_kmip.check``, which loads torch only when there is something to check."""

from __future__ import annotations

import argparse
from pathlib import Path

from graphgps_kmip.common.near_misses import suggest

PARTS = ("kernels", "components", "laws", "speed")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments; ends the process with code 2 after a mistake.

    Args:
        words (default: those of the process): of the command line.
    """
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
    return parser.parse_args(words)


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(text.split(","))
    for part in parts:
        if part not in PARTS:
            raise argparse.ArgumentTypeError(f"unknown part {part!r}.{suggest(part, PARTS)}")
    return parts
