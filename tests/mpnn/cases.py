"""What message passing layers are tried on: every row of the table, its variants, small batches of graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import graphgps_kmip.mpnn  # noqa: F401 (registers layers)
from graphgps_kmip.registry import entries

DIM = 8
OPTIONS: dict[str, dict[str, Any]] = {
    "GatedGCN": {"equivstable_pe": True},
    "GINE": {"equivstable_pe": True, "inner": "mlp_dropout"},
    "GINE ": {"inner": "norm_linear"},
    "GAT": {"heads": 2},
    "GAT ": {"heads": 4, "use_edge_attr": False},
    "GATv2": {"heads": 2},
    "PNA": {"edge_dim": DIM},
    "APPNP": {"steps": 3, "alpha": 0.4},
}
LAYERS: dict[str, Callable[[], nn.Module]] = {
    name: partial(row.component, DIM, 0.5) for name, row in entries("message_passing").items()
}
LAYERS |= {
    f"{name.strip()} {options}": partial(entries("message_passing")[name.strip()].component, DIM, 0.5, **options)
    for name, options in OPTIONS.items()
}


class Graph(NamedTuple):
    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor
    encoding: Tensor


def make_graph(num_nodes: int, num_edges: int | None = None, seed: int = 0) -> Graph:
    """Draw a graph with edges between any two nodes, double edges among them; self loops on a single node only."""
    generator = torch.Generator().manual_seed(seed + 100 * num_nodes)
    num_edges = 3 * num_nodes if num_edges is None else num_edges
    source = torch.randint(0, max(num_nodes, 1), (num_edges,), generator=generator)
    step = torch.randint(1, max(num_nodes, 2), (num_edges,), generator=generator)
    edge_index = torch.stack([source, (source + step) % max(num_nodes, 1)])

    def draw(rows: int) -> Tensor:
        return torch.randn(rows, DIM, generator=generator, dtype=torch.float64)

    return Graph(draw(num_nodes), edge_index, draw(num_edges), draw(num_nodes))


def joined(graphs: list[Graph]) -> Graph:
    starts = [sum(len(graph.x) for graph in graphs[:i]) for i in range(len(graphs))]
    edges = torch.cat([graph.edge_index + start for graph, start in zip(graphs, starts, strict=True)], dim=1)
    x, edge_attr, encoding = (
        torch.cat([getattr(graph, name) for graph in graphs]) for name in ("x", "edge_attr", "encoding")
    )
    return Graph(x, edges, edge_attr, encoding)


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return LAYERS[name]().double().eval()


def call(layer: nn.Module, graph: Graph, x: Any = None, encoding: Any = None) -> tuple[Tensor, Tensor]:
    x, encoding = graph.x if x is None else x, graph.encoding if encoding is None else encoding
    read_encoding = encoding if getattr(layer, "gate", None) is not None else None
    return layer(x, graph.edge_index, graph.edge_attr, read_encoding)


def check_gradients(
    results: Sequence[Tensor], expected: Sequence[Tensor], inputs: Sequence[Tensor | None], tolerance: float
) -> None:
    """Compare the gradients of two outputs, of both and of either alone: a loss may read one of them only."""
    inputs, cotangents = [t for t in inputs if t is not None], [torch.randn_like(t) for t in expected]
    for which in ([0, 1], [0], [1]):
        grads, expected_grads = (
            torch.autograd.grad(
                [outputs[i] for i in which],
                inputs,
                [cotangents[i] for i in which],
                retain_graph=True,
                materialize_grads=True,
            )
            for outputs in (results, expected)
        )
        torch.testing.assert_close(grads, expected_grads, rtol=tolerance, atol=tolerance)
