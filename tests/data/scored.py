"""Graphs with attention scores, for the tests of score files, drawn edges and layer-wise batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data.score_file import AttentionScores, LayerScores

FACTS = {"data": "d1", "split": "s1", "settings": "c1", "seed": 2, "epoch": 7, "kinds": "graph, expander, self loop"}


def layer_of(degrees: list[int] | Tensor, score: list[float] | Tensor | None = None, seed: int = 0) -> LayerScores:
    """Return a layer whose nodes have these numbers of in-edges; edges come from random nodes, scores too if None."""
    generator = torch.Generator().manual_seed(seed)
    degrees = torch.as_tensor(degrees)
    ptr = torch.cat([torch.zeros(1, dtype=torch.long), degrees.cumsum(0)])
    count = int(ptr[-1])
    source = torch.randint(len(degrees), (count,), generator=generator).int()
    kind = torch.randint(3, (count,), generator=generator).to(torch.uint8)
    score = torch.rand(count, generator=generator) if score is None else torch.as_tensor(score)
    total = torch.segment_reduce(score.double(), "sum", lengths=degrees, initial=0.0)
    return LayerScores(ptr, source, kind, (score / total.repeat_interleave(degrees)).float())


def scores_of(degrees: list[int] | Tensor, num_layers: int = 2, **facts: Any) -> AttentionScores:
    first = layer_of(degrees)
    layers = [
        LayerScores(first.ptr, first.source, first.kind, layer_of(degrees, seed=i).score) for i in range(num_layers)
    ]
    return AttentionScores(layers, FACTS | {"num_nodes": len(degrees)} | facts)


def graph_of(num_nodes: int, num_features: int = 6) -> Data:
    """Return a graph whose first feature is the number of the node; each third node belongs to a split."""
    nodes = torch.arange(num_nodes)
    x = torch.randn(num_nodes, num_features, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x[:, 0] = nodes
    graph = Data(x=x, y=nodes % 4, edge_index=torch.stack([nodes, nodes.roll(1)]))
    for number, split in enumerate(("train", "val", "test")):
        graph[f"{split}_mask"] = nodes % 3 == number
    return graph
