"""PPGT's case studies of token magnitude, in seconds on a CPU (PPGT paper, figures 2, 3 and 5).

  python run/magnitude.py attention    dot product, cosine and L2 attention of one query
  python run/magnitude.py encoding     what SPE makes of the RRWP of two pairs of nodes
  python run/magnitude.py norms        autoencoders with BatchNorm, RMSNorm and AdaRMSNorm

Each writes JSON below --out and prints what it found. The vectors of figure 2, the graph of figure 3, and width and
learning rate of figure 5 are ours: the paper has none.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from graphgps_kmip.common.atomic_write import write_json
from graphgps_kmip.encoding.ppgt_stems import sinusoidal
from graphgps_kmip.encoding.rrwp import RRWP, rrwp
from graphgps_kmip.ops.row_layers import NORM_LAYERS

# Figure 2: k1 is the nearest to q, k2 has nearly the direction of q and is longer, k3 is a short one of that direction.
QUERY = (1.0, 1.0)
KEYS = {"k1": (1.2, 0.75), "k2": (2.6, 2.3), "k3": (0.2, 0.2)}
# Figure 5
NORMS = {"BN": "batch_norm", "RMSN": "rms_norm", "AdaRMSN": "ada_rms_norm"}
NUM_POINTS = 200
LEARNING_RATE = 0.01
# Figure 3: a ring of six nodes with a path of three more; nodes 3 and 8 are both three steps away from node 0.
EDGES = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 6), (6, 7), (7, 8))
PAIRS = {"i, j": (0, 3), "i, k": (0, 8)}


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


def attention_kinds(query: Sequence[float] = QUERY, keys: Mapping[str, Sequence[float]] = KEYS) -> dict[str, Any]:
    """Return ``query``, ``keys`` by name, and ``weights``: kind of attention -> key -> weight.

    Scores are q.k / sqrt(D) (equation 2), cos(q, k) / sqrt(D), and -|q - k|^2 / (2 sqrt(D)) (equation 4).
    """
    q, k = torch.tensor(query, dtype=torch.float64), torch.tensor(list(keys.values()), dtype=torch.float64)
    root = math.sqrt(len(q))
    dot = k @ q
    scores = {
        "dot product": dot / root,
        "cosine": dot / (q.norm() * k.norm(dim=1)) / root,
        "L2": (k - q).square().sum(dim=1) / (-2 * root),
    }
    weights = {name: dict(zip(keys, score.softmax(0).tolist(), strict=True)) for name, score in scores.items()}
    return {"query": list(query), "keys": {name: list(key) for name, key in keys.items()}, "weights": weights}


def encoded_differences(ksteps: int = 24, num_bases: int = 3) -> dict[str, Any]:
    """Return the difference of the RRWP of two pairs of nodes of one graph by channel, before and after SPE."""
    source, target = zip(*EDGES, strict=True)
    nodes = max(max(EDGES)) + 1
    edges = torch.tensor([source + target, target + source])
    values = rrwp(edges, nodes, RRWP(ksteps=ksteps, channels="K+1", precision="float64")).view(nodes, nodes, -1)
    first, second = (values[pair] for pair in PAIRS.values())
    raw = (first - second).abs()
    encoded = (sinusoidal(first[None], num_bases) - sinusoidal(second[None], num_bases)).abs()[0, len(raw) :]
    by_channel = encoded.view(len(raw), -1).tolist()
    pairs = {name: list(pair) for name, pair in PAIRS.items()}
    return {"edges": [list(edge) for edge in EDGES], "pairs": pairs, "raw": raw.tolist(), "encoded": by_channel}


def norm_autoencoders(epochs: int = 5000, seed: int = 0) -> dict[str, Any]:
    """Train an autoencoder FC, norm, FC (equation 11), 2 wide, per norm on the same points, full-batch AdamW.

    Returns ``points``, and by norm ``predictions``, ``error`` (mean squared) and ``magnitude_error`` (of the norms).
    """
    generator = torch.Generator().manual_seed(seed)
    angle, size = (torch.rand(NUM_POINTS, generator=generator) for _ in range(2))
    points = (0.5 + size)[:, None] * torch.stack([torch.cos(math.tau * angle), torch.sin(math.tau * angle)], dim=1)
    results = {}
    for name, norm in NORMS.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(2, 2), NORM_LAYERS[norm](2), nn.Linear(2, 2))
            optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
            for _ in range(epochs):
                optimizer.zero_grad()
                mse_loss(model(points), points).backward()
                optimizer.step()
            with torch.no_grad():
                predictions = model.eval()(points)
        results[name] = {
            "predictions": predictions.tolist(),
            "error": mse_loss(predictions, points).item(),
            "magnitude_error": (predictions.norm(dim=1) - points.norm(dim=1)).abs().mean().item(),
        }
    return {"points": points.tolist(), "epochs": epochs, "norms": results}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
