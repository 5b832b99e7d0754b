"""Random GPS models for `expressivity.py`: one builder for each row of `REACH`, and how a graph is put in."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.nn import BatchNorm

from graphgps_kmip.attention import (
    BiasedFullAttention,
    BigBirdAttention,
    DiverseKeys,
    ExphormerAttention,
    FullAttention,
    GraphContext,
    KMIPAttention,
    PerformerAttention,
    RandomKeys,
)
from graphgps_kmip.compat.kmip_faults import FirstKeyAgain
from graphgps_kmip.encoding.expander_graph import expander_edges, expander_generator
from graphgps_kmip.expressivity.seg_wl import Encoding, Graph
from graphgps_kmip.expressivity.wl_encodings import hops
from graphgps_kmip.model.gps import GPSLayer, initial_states
from graphgps_kmip.mpnn import GAT, GCN, GIN, GINE, PNA, GatedGCN, GATv2, GENConv

DIM, HEADS = 8, 2
EXPANDER_DEGREE = 4


def _tied(dim: int, heads: int) -> KMIPAttention:
    """k-MIP whose keys are all equal, so that all scores of a query tie."""
    attention = KMIPAttention(dim, heads, k=1, search="exact")
    nn.init.zeros_(attention.key.weight)
    return attention


# Of the same names as the rows of `REACH`; small blocks and few keys, so that they matter on small graphs.
ATTENTIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "Transformer": FullAttention,
    "Performer": lambda dim, heads: PerformerAttention(dim, heads, dim_head=dim, num_features=16),
    "kMIP": lambda dim, heads: KMIPAttention(dim, heads, k=2, search="exact"),
    "kMIP, diversity": lambda dim, heads: KMIPAttention(dim, heads, k=2, search="exact", selection=DiverseKeys(0.5)),
    "Exphormer": lambda dim, heads: ExphormerAttention(dim, heads, use_exp_edges=False),
    "Exphormer, virtual nodes": lambda dim, heads: ExphormerAttention(dim, heads, num_virt_node=2, use_exp_edges=False),
    "kMIP, tied keys": _tied,
    "kMIP, repeat_first_key": lambda dim, heads: KMIPAttention(
        dim, heads, k=40, search="exact", selection=FirstKeyAgain()
    ),
    "kMIP, random_attention": lambda dim, heads: KMIPAttention(
        dim, heads, k=2, search="exact", selection=RandomKeys(0.5)
    ),
    "Exphormer, expander": ExphormerAttention,
    "BigBird": lambda dim, heads: BigBirdAttention(dim, heads, block_size=1, num_random_blocks=1),
    "BiasedTransformer": BiasedFullAttention,
}
MPNNS = {"GCN": GCN, "GAT": GAT, "GATv2": GATv2, "GENConv": GENConv, "GIN": GIN, "GINE": GINE}
MPNNS |= {"GatedGCN": GatedGCN, "PNA": PNA}


class GPS(nn.Module):
    """A stack of GPS layers with random weights, float64, in eval mode: encoders of nodes and edges, no head.

    Without batch norm: that of the layers is off, and those inside message passing are taken out.

    Args:
        mpnn: a row of `MPNNS`, or None.
        attention: a row of `ATTENTIONS`, or None.
        layers: how many.
        seed: of the weights, and of what the attention draws.
        norm: of the layers, a row of `NORMS`.

    Shapes: graph, encoding -> (N, C).
    """

    def __init__(self, mpnn: str | None, attention: str | None, layers: int, seed: int, norm: str = "none") -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.seed, self.reads_expander = seed, attention == "Exphormer, expander"
        self.nodes, self.edges, self.bias = nn.LazyLinear(DIM), nn.LazyLinear(DIM), nn.LazyLinear(HEADS)
        self.layers = nn.ModuleList(
            GPSLayer(
                DIM,
                MPNNS[mpnn](DIM) if mpnn else None,
                ATTENTIONS[attention](DIM, HEADS) if attention else None,
                norm=norm,
            )
            for _ in range(layers)
        )
        for module in list(self.modules()):
            for name, child in module.named_children():
                if isinstance(child, BatchNorm):
                    setattr(module, name, nn.Identity())
        self.double().eval()

    def forward(self, graph: Graph, encoding: Encoding) -> Tensor:
        """Return the features of the nodes after the last layer."""
        x = self.nodes(_features(graph.num_nodes, graph.x, encoding.node))
        context = self._context(graph, encoding)
        states = initial_states(self.layers[0].attention, context)
        for layer in self.layers:
            x, edge_attr, states = layer(x, context, states)
            context = context.with_edge_attr(edge_attr)
        return x

    def _context(self, graph: Graph, encoding: Encoding) -> GraphContext:
        size, sets = graph.num_nodes, {}
        nodes = torch.arange(size)
        pair = encoding if encoding.pair is not None else hops(graph)
        if self.reads_expander:
            sets["expander"] = (expander_edges(size, EXPANDER_DEGREE, rng=expander_generator(self.seed, 0)), None)
        return GraphContext(
            torch.zeros(size, dtype=torch.long),
            torch.tensor([0, size]),
            edge_index=graph.edge_index,
            edge_attr=self.edges(_features(graph.edge_index.size(1), graph.edge_attr, encoding.edge)),
            edge_sets=sets,
            pair_index=torch.cartesian_prod(nodes, nodes).T,
            pair_attr=self.bias(pair.pair.flatten(0, 1).double()),
        )


def _features(count: int, *parts: Tensor | None) -> Tensor:
    """Return what there is side by side, behind a column of ones, float64."""
    given = [part.double() for part in parts if part is not None]
    return torch.cat([torch.ones(count, 1, dtype=torch.float64), *given], dim=1)
