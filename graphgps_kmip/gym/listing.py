"""What ``python main.py --list [NAME*]`` shows: the registered components with one line each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch_geometric.graphgym import register

from graphgps_kmip.common.near_misses import near_misses
from graphgps_kmip.common.project import train_command
from graphgps_kmip.data import DATASETS
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.attention import ATTENTION
from graphgps_kmip.gym.head import HEADS
from graphgps_kmip.gym.mpnn import MPNN
from graphgps_kmip.gym.posenc import EDGE_PARTS, NODE_PARTS
from graphgps_kmip.model.prediction_heads import POOLINGS
from graphgps_kmip.search import BACKENDS
from graphgps_kmip.task import LOSSES
from graphgps_kmip.train.optimizers import OPTIMIZERS
from graphgps_kmip.train.schedulers import SCHEDULERS


def listing(patterns: Sequence[str] = ("*",)) -> str:
    """Return the components that have one of the given names as text, a table for each kind.

    Args:
        patterns (default: all): names, in upper or lower case; ``*``, ``?`` and ``[...]`` stand for what they do in a
            shell. A data set has several: its title, ``dataset.format``, ``dataset.name``, and ``format / name``.

    Raises:
        ConfigError: a pattern fits nothing, with near misses.
    """
    tables = {title: {_name(key): (_names(key, row), row) for key, row in rows.items()} for title, rows in _kinds()}
    known = {name for rows in tables.values() for names, _ in rows.values() for name in names}
    for pattern in patterns:
        if not any(_fits(name, pattern) for name in known):
            near = near_misses(pattern, known) or " `--list` alone shows all."
            part = pattern.strip("*")
            raise ConfigError(f"--list: no component has the name {pattern!r}.{near} '*{part}*' finds parts of names.")
    shown = {
        title: {key: row for key, (names, row) in rows.items() if any(_fits(n, p) for n in names for p in patterns)}
        for title, rows in tables.items()
    }
    return "\n\n".join(_table(title, rows) for title, rows in shown.items() if rows)


def _kinds() -> list[tuple[str, Mapping[Any, Any]]]:
    return [
        ("attention (part of gt.layer_type)", ATTENTION),
        ("message passing (part of gt.layer_type)", MPNN),
        ("network (model.type)", register.network_dict),
        ("node encoder (dataset.node_encoder_name)", register.node_encoder_dict),
        ("encoding (further parts of dataset.node_encoder_name, with posenc_<name>.enable True)", NODE_PARTS),
        ("edge encoder (dataset.edge_encoder_name)", register.edge_encoder_dict),
        ("encoding of edges (further parts of dataset.edge_encoder_name)", EDGE_PARTS),
        (f"data set (dataset.format / dataset.name; {train_command()} --data TITLE)", _data_sets()),
        ("head (gnn.head)", register.head_dict | HEADS),
        ("pooling (model.graph_pooling)", POOLINGS),
        ("loss (model.loss_fun)", LOSSES),
        ("optimiser (optim.optimizer)", OPTIMIZERS | _others(register.optimizer_dict, OPTIMIZERS)),
        ("scheduler (optim.scheduler)", SCHEDULERS | _others(register.scheduler_dict, SCHEDULERS)),
        ("k-MIP search (gt.kmip.search)", BACKENDS),
    ]


def _data_sets() -> dict[tuple[str, str], str]:
    return {(format, name or "none"): f"{row.title}: {row.summary}" for (format, name), row in DATASETS.items()}


def _others(registry: Mapping[Any, Callable[..., Any]], ours: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry for name, entry in registry.items() if name not in ours and name is not None}


def _table(title: str, rows: Mapping[str, Any]) -> str:
    lines = {name: _summary(row) for name, row in rows.items()}
    width = max(map(len, lines), default=0)
    return "\n".join([title, *(f"  {name:<{width}}  {lines[name]}".rstrip() for name in sorted(lines, key=str.lower))])


def _name(key: Any) -> str:
    return " / ".join(str(part) for part in key) if isinstance(key, tuple) else str(key)


def _names(key: Any, row: Any) -> set[str]:
    """Return all that a component is called."""
    if not isinstance(key, tuple):
        return {_name(key)}
    return {_name(key), row.partition(": ")[0], *key} - {"none"}  # no dataset.name of its own


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name.lower(), pattern.lower())


def _summary(row: Any) -> str:
    text = row if isinstance(row, str) else getattr(row, "summary", None) or inspect.getdoc(row) or ""
    return text.strip().split("\n")[0]
