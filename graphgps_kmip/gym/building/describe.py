"""What ``--dry-run`` prints: the resolved config, the model, its parameter count by part, the data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.data import find, published_rows
from graphgps_kmip.gym.building.parameter_count import count_layers
from graphgps_kmip.gym.running.data_loading import missing_data, stand_in
from graphgps_kmip.gym.running.experiment import Parts, assemble


def dry_run() -> str:
    """Return what `describe` says of the loaded config, which is frozen by it.

    Where the raw files of the data set are missing, nothing is downloaded: the model is built from the dims that its
    record knows, and the last section says what is missing and where it goes.

    Raises:
        DataError: the files are missing, and only they tell the dims (Folder data).
    """
    missing = missing_data()
    if not missing:
        return describe(assemble())
    with stand_in():
        parts = assemble()
    record = find(cfg.dataset.format, cfg.dataset.name)
    return describe(parts, [*published_rows(record, parts.info), ("missing", missing)])


def describe(parts: Parts, data: Sequence[tuple[str, str]] | None = None) -> str:
    """Return config, model, counts and data statistics as text.

    Args:
        parts: of the run.
        data: rows (what, value) on the data set; None: what was found in it.
    """
    sections = {
        "config": cfg.dump().rstrip(),
        "model": str(parts.model),
        "parameters": parameter_table(parts.model),
        "data": "\n".join(f"{name:<28} {value}" for name, value in data or parts.info.describe()),
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
