"""What ``python main.py --list`` shows: every registered component with one line each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch_geometric.graphgym import register

from graphgps_kmip.data import DATASETS
from graphgps_kmip.gym.attention import ATTENTION
from graphgps_kmip.gym.head import HEADS
from graphgps_kmip.gym.mpnn import MPNN
from graphgps_kmip.gym.posenc import EDGE_PARTS, NODE_PARTS
from graphgps_kmip.model.heads import POOLINGS
from graphgps_kmip.search import BACKENDS
from graphgps_kmip.task import LOSSES
from graphgps_kmip.train.optimizers import OPTIMIZERS
from graphgps_kmip.train.schedulers import SCHEDULERS


def listing() -> str:
    """Return all tables as text."""
    tables: dict[str, Mapping[str, Any]] = {
        "attention (part of gt.layer_type)": ATTENTION,
        "message passing (part of gt.layer_type)": MPNN,
        "network (model.type)": register.network_dict,
        "node encoder (dataset.node_encoder_name)": register.node_encoder_dict,
        "encoding (further parts of dataset.node_encoder_name, with posenc_<name>.enable True)": NODE_PARTS,
        "edge encoder (dataset.edge_encoder_name)": register.edge_encoder_dict,
        "encoding of edges (further parts of dataset.edge_encoder_name)": EDGE_PARTS,
        "data set (dataset.format / dataset.name; python main.py --data TITLE)": _data_sets(),
        "head (gnn.head)": register.head_dict | HEADS,
        "pooling (model.graph_pooling)": POOLINGS,
        "loss (model.loss_fun)": LOSSES,
        "optimiser (optim.optimizer)": OPTIMIZERS | _others(register.optimizer_dict, OPTIMIZERS),
        "scheduler (optim.scheduler)": SCHEDULERS | _others(register.scheduler_dict, SCHEDULERS),
        "k-MIP search (gt.kmip.search)": BACKENDS,
    }
    return "\n\n".join(_table(title, rows) for title, rows in tables.items())


def _data_sets() -> dict[tuple[str, str], str]:
    return {(format, name or "none"): f"{row.title}: {row.summary}" for (format, name), row in DATASETS.items()}


def _others(registry: Mapping[Any, Callable[..., Any]], ours: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry for name, entry in registry.items() if name not in ours and name is not None}


def _table(title: str, rows: Mapping[Any, Any]) -> str:
    lines = {_name(key): _summary(row) for key, row in rows.items()}
    width = max(map(len, lines), default=0)
    return "\n".join([title, *(f"  {name:<{width}}  {lines[name]}".rstrip() for name in sorted(lines, key=str.lower))])


def _name(key: Any) -> str:
    return " / ".join(str(part) for part in key) if isinstance(key, tuple) else str(key)


def _summary(row: Any) -> str:
    text = row if isinstance(row, str) else getattr(row, "summary", None) or inspect.getdoc(row) or ""
    return text.strip().split("\n")[0]
