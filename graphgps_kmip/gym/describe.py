"""What ``--dry-run`` prints: the resolved config, the model, its parameter count by part, the data."""

from __future__ import annotations

from itertools import groupby

from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.gym.count import count_layers
from graphgps_kmip.gym.experiment import Parts


def describe(parts: Parts) -> str:
    """Return config, model, counts and data statistics as text."""
    sections = {
        "config": cfg.dump().rstrip(),
        "model": str(parts.model),
        "parameters": parameter_table(parts.model),
        "data": "\n".join(f"{name:<28} {value}" for name, value in parts.info.describe()),
    }
    return "\n\n".join(f"--- {title}\n{text}" for title, text in sections.items())


def parameter_table(model: nn.Module) -> str:
    """Return the parameter count of each component, once those of layers that are alike, and their sum."""
    once, layers = count_layers(model)
    rows = list(once.items())
    start = 0
    for layer, alike in groupby(layers):
        stop = start + len(list(alike))
        name = f"layers.{start}" if stop == start + 1 else f"layers.{start} to layers.{stop - 1}, each"
        rows += [(name, sum(layer.values())), *((f"  {part}", count) for part, count in layer.items())]
        start = stop
    rows.append(("total", sum(once.values()) + sum(sum(layer.values()) for layer in layers)))
    return "\n".join(f"{name:<28} {count:>12,}" for name, count in rows)
