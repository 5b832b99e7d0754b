"""Run by test_sharded_layers.py in each process of a group: message passing on its shard of a graph, with gradients."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch_geometric.data import Data

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.data.partition import partition, shard_of
from tests.mpnn.cases import DIM, LAYERS, build, make_graph


def whole_graph() -> Data:
    """A graph of 40 nodes with double edges, loops on some nodes, and two nodes that no edge ends in."""
    graph, count = make_graph(40, 150), 40
    loops = torch.tensor([[3, 17, 17, 39], [3, 17, 17, 39]])
    index = torch.cat([graph.edge_index, loops], dim=1)
    kept = (index[1] != 5) & (index[1] != 20)
    edge_attr = torch.cat([graph.edge_attr, graph.edge_attr[:4] + 1])
    return Data(
        x=graph.x, encoding=graph.encoding, edge_index=index[:, kept], edge_attr=edge_attr[kept], num_nodes=count
    )


def cotangent(rows: Tensor) -> Tensor:
    """Weights of the outputs in the sum whose gradient is taken, by node: (n,) -> (n, C)."""
    return torch.sin(rows[:, None] + 2.0 * torch.arange(DIM, dtype=torch.float64))


def run(layer: nn.Module, graph: Data, rows: Tensor) -> dict[str, Any]:
    """Return output and gradients of a layer on a graph, or on the shard of one whose nodes are `rows`."""
    context = GraphContext.from_data(graph)
    x = graph.x.clone().requires_grad_()
    encoding = () if getattr(layer, "gate", None) is None else (context.sources(graph.encoding),)
    out, _ = layer(context.sources(x), graph.edge_index, graph.edge_attr, *encoding)
    layer.zero_grad()
    (out * cotangent(rows)).sum().backward()
    parameters = {name: one.grad for name, one in layer.named_parameters() if one.grad is not None}
    return {"rows": rows, "out": out.detach(), "x": x.grad, "parameters": parameters}


def main(folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    graph = whole_graph()
    graph.batch = torch.zeros(graph.num_nodes, dtype=torch.long)
    shard = shard_of(graph, rank, world)
    rows = torch.from_numpy(partition(graph.edge_index, graph.num_nodes, world)[rank])
    found = {name: run(build(name), shard, rows) for name in LAYERS}
    torch.save(found, Path(folder) / f"{world}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
