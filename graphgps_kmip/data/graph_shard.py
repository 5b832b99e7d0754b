"""One large graph divided over processes: each holds some nodes, the edges into them, and who tells whom of nodes."""

from __future__ import annotations

import logging

import numpy as np
import torch
from torch_geometric.data import Data

from graphgps_kmip.data.node_loader import PAIRS, InEdges
from graphgps_kmip.data.partition import partition
from graphgps_kmip.errors import InputError

log = logging.getLogger(__name__)


def shard_of(graph: Data, rank: int, world_size: int) -> Data:
    """Return the share of one process: its nodes' rows, the edges that end in them, and who tells whom of which node.

    Nodes are divided into parts of equal size that few edges leave (`partition`). ``edge_index`` counts targets among
    the own nodes, sources among these and, behind them, the nodes of other processes (the halo) in the order in which
    they come: by rank. ``halo_rows`` are the own nodes to send, in order of the receiving rank, ``halo_send`` and
    ``halo_receive`` how many go to and come from each.

    Args:
        graph: the whole graph, the same in all processes.
        rank: number of this process.
        world_size: number W of processes, at most N.

    Shapes: of the result: x (n, F), edge_index (2, e), halo_rows (S,), halo_send and halo_receive (W,).

    Raises:
        ValueError: the graph has further pairs of nodes, which nothing divides yet.
    """
    for key in graph.keys():  # noqa: SIM118 (Data is no mapping)
        if key.endswith(PAIRS) and key != "edge_index":
            raise InputError(f"gt.kmip.shard: {key} cannot be divided over processes: set it to False")
    parts = [torch.from_numpy(nodes) for nodes in partition(graph.edge_index, graph.num_nodes, world_size)]
    owner, place = torch.empty(2, graph.num_nodes, dtype=torch.long)
    for number, nodes in enumerate(parts):
        owner[nodes], place[nodes] = number, torch.arange(len(nodes))
    source, target = graph.edge_index
    # Every node that some process needs and does not own, once: in order of process, then of owner, then of place.
    away = owner[source] != owner[target]
    needed = torch.stack([owner[target], owner[source], place[source]])[:, away].unique(dim=1)
    receiver, sender, row = needed
    own = parts[rank]
    edges, _ = InEdges(graph.edge_index, graph.num_nodes).of(own)
    shard = Data(num_nodes=len(own))
    for key, value in graph:
        if key not in ("edge_index", "num_nodes"):
            shard[key] = value[own] if graph.is_node_attr(key) else value[edges] if graph.is_edge_attr(key) else value
    index = place.clone()  # of each node as a source
    for_us = receiver == rank
    index[_nodes(parts, sender[for_us], row[for_us])] = len(own) + torch.arange(int(for_us.sum()))
    shard.edge_index = torch.stack([index[source[edges]], place[target[edges]]])
    shard.halo_rows = row[sender == rank]
    shard.halo_send = receiver[sender == rank].bincount(minlength=world_size)
    shard.halo_receive = sender[for_us].bincount(minlength=world_size)
    log.info(
        "process %d of %d: %s nodes, %s edges, and %s nodes of others that it reads",
        rank,
        world_size,
        *(f"{count:,}" for count in (len(own), len(edges), int(for_us.sum()))),
    )
    return shard


def _nodes(parts: list[torch.Tensor], owner: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """Return the nodes of the whole graph that have these places in these parts."""
    first = torch.from_numpy(np.cumsum([0, *map(len, parts)]))
    return torch.cat(parts)[first[owner] + place]
