"""PPGT's case studies of token magnitude: kinds of attention (figure 2), RRWP and SPE (figure 3), norms (figure 5).

The vectors of figure 2, the graph of figure 3, and width and learning rate of figure 5 are ours: the paper has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

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
# Proposition E.3
SCALES = (0.1, 3.0, 10.0)
SCALED_NORMS = {"LN": "layer_norm", "RMSN": "rms_norm", "AdaRMSN": "ada_rms_norm"}
# Figure 3: a ring of six nodes with a path of three more; nodes 3 and 8 are both three steps away from node 0.
EDGES = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 6), (6, 7), (7, 8))
PAIRS = {"i, j": (0, 3), "i, k": (0, 8)}


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


def scale_changes(dim: int = 16, seed: int = 0) -> dict[str, float]:
    """Return the largest relative change of each norm's output when its input is scaled by `SCALES`; see AdaRMSN."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(64, dim, generator=generator, dtype=torch.float64)
    changes = {}
    for name, key in SCALED_NORMS.items():
        norm = NORM_LAYERS[key](dim).double()
        with torch.no_grad():
            for parameter in norm.parameters():
                parameter.copy_(torch.randn(dim, generator=generator, dtype=torch.float64))
            y = norm(x)
            changes[name] = max(float((norm(scale * x) - y).abs().max() / y.abs().max()) for scale in SCALES)
    return changes
