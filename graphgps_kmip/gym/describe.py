"""What ``--dry-run`` prints: the resolved config, the model, its parameter count by part, the data."""

from __future__ import annotations

from torch import nn
from torch_geometric.graphgym.config import cfg

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
    """Return the parameter count of each part of a network, the layers of its stack one by one, and their sum."""
    network = getattr(model, "model", model)  # GraphGym wraps its networks once
    rows = []
    for name, part in network.named_children():
        inner = list(part.named_children()) if isinstance(part, nn.ModuleList) else [("", part)]
        rows += [(f"{name}.{i}" if i else name, _count(module)) for i, module in inner]
    rows.append(("total", _count(network)))
    return "\n".join(f"{name:<28} {count:>12,}" for name, count in rows)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
