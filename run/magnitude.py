"""PPGT's case studies of token magnitude, in seconds on a CPU (PPGT paper, figures 2, 3 and 5).

  python run/magnitude.py attention    dot product, cosine and L2 attention of one query
  python run/magnitude.py encoding     what SPE makes of the RRWP of two pairs of nodes
  python run/magnitude.py norms        autoencoders with BatchNorm, RMSNorm and AdaRMSNorm

Each writes JSON below --out and prints what it found.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from graphgps_kmip.common.atomic_write import write_json
from graphgps_kmip.expressivity.magnitude_cases import attention_kinds, encoded_differences, norm_autoencoders


def main(argv: list[str]) -> int:
    """Run one part; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    work = {"attention": _show_attention, "encoding": _show_encoding, "norms": _show_norms}
    for name in work:
        add = parts.add_parser(name).add_argument
        add("--out", type=Path, default=Path("results/magnitude"), help="results folder")
    parts.choices["norms"].add_argument("--epochs", type=int, default=5000, help="steps (default 5000)")
    args = parser.parse_args(argv)
    if getattr(args, "epochs", 1) < 1:
        parser.error(f"--epochs: got {args.epochs}, at least 1 is needed")
    torch.set_num_threads(1)  # layers of width 2: starting further threads takes longer than the work
    write_json(args.out / f"{args.part}.json", work[args.part](args))
    return 0


def _show_attention(_args: argparse.Namespace) -> dict[str, Any]:
    content = attention_kinds()
    print(f"{'':<12}" + "".join(f"{name:>8}" for name in content["keys"]))
    for kind, weights in content["weights"].items():
        print(f"{kind:<12}" + "".join(f"{weight:>8.3f}" for weight in weights.values()))
    return content


def _show_encoding(_args: argparse.Namespace) -> dict[str, Any]:
    content = encoded_differences()
    raw, encoded = max(content["raw"]), max(max(row) for row in content["encoded"])
    print(f"largest difference of a channel of RRWP: {raw:.4f}, of its sines and cosines: {encoded:.4f}")
    return content


def _show_norms(args: argparse.Namespace) -> dict[str, Any]:
    content = norm_autoencoders(args.epochs)
    print(f"{'':<8}{'mean squared error':>20}{'error of magnitude':>20}")
    for name, norm in content["norms"].items():
        print(f"{name:<8}{norm['error']:>20.2e}{norm['magnitude_error']:>20.2e}")
    return content


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
