"""Expander graphs as the config asks for them (``prep.exp*``), computed once for data and seed."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.data import Encoding
from graphgps_kmip.encoding.expander_graph import expander_edges, expander_generator


def expanders() -> list[Encoding]:
    """Return the edge set ``expander`` of every graph, where the config asks for it."""
    if not cfg.prep.exp:
        return []
    settings = {name: cfg.prep[f"exp_{name}"] for name in ("algorithm", "deg", "max_num_iters", "raw")}
    settings["seed"] = cfg.seed
    return [Encoding("Expander", settings, partial(_compute, settings=settings), random=True, reads=())]


def _compute(graphs: list[Data], settings: dict[str, Any]) -> list[dict[str, Tensor]]:
    return [
        {
            "expander_edge_index": expander_edges(
                graph.num_nodes,
                settings["deg"],
                settings["algorithm"],
                rng=expander_generator(settings["seed"], graph.graph_id),
                max_num_iters=settings["max_num_iters"],
                raw=settings["raw"],
            )
        }
        for graph in graphs
    ]
