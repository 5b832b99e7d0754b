"""Faults of public encodings and data preparation: Graphormer's bias and token, expander graphs, reverse edges.

For runs that must repeat them. Each fault is a subclass or a function beside the correct one, which does not know of
it, and is chosen by a config key: of ``posenc_GraphormerBias`` by the registered encoding, of ``prep`` where data is
loaded. Graphormer's are those of GraphGPS, the other two of Exphormer.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding.expander_graph import (
    Expander,
    Expansion,
    adjacency_without_loops,
    expander_edges,
    expander_generator,
    second_eigenvalue,
)
from graphgps_kmip.encoding.graphormer_bias import GraphormerBias, GraphormerEncoder, GraphToken
from graphgps_kmip.registry import register


class PaddedPathsEncoder(GraphormerEncoder):
    """Graphormer encoder whose places without an edge hold edges of type 0: the quirk ``graphormer_padded_paths``.

    These are the places behind the end of a path, one more than paths are kept, and all places of pairs without a path.
    """

    def _before_edges(self, tables: Tensor, num_pairs: int) -> tuple[Tensor, Tensor]:
        total, tables = super()._before_edges(tables, num_pairs)
        # type 0 at every place, and taken away again where there is an edge
        return total + tables[:, 0].sum(dim=0), tables - tables[:, :1]


class UnmovedEdgesToken(GraphToken):
    """Graph token that leaves edges at the numbers of before: the quirk ``graphormer_token_shifts_edges``.

    All nodes behind a token have new numbers, so that message passing along the edges reads other nodes.
    """

    def _move_edges(self, batch: Batch, moved: Tensor) -> None:
        """Leave the edges as they are."""


@register("encoding", "GraphormerBias", extends=GraphormerBias)
class PublicGraphormerBias(GraphormerBias):
    """Embeddings of degrees, an attention bias of shortest paths, a graph token; takes no columns."""

    pad_paths: bool = False
    move_edges: bool = True

    @property
    def encoder_class(self) -> type[GraphormerEncoder]:
        """Class of the module of degrees and bias."""
        return PaddedPathsEncoder if self.pad_paths else GraphormerEncoder

    @property
    def token_class(self) -> type[GraphToken]:
        """Class of the module of the graph token."""
        return GraphToken if self.move_edges else UnmovedEdgesToken


class PublicExpander(Expander):
    """Edge set ``expander_edge_index`` of each graph; with ``raw`` that of `RAW`."""

    raw: bool = False
    FROM_CONFIG = {**Expander.FROM_CONFIG, "raw": "prep.exp_raw"}

    @staticmethod
    def compute(
        graph: Data, deg: int, algorithm: str, max_num_iters: int, seed: int, raw: bool = False
    ) -> dict[str, Tensor]:
        """Return the edges, which are random by seed and graph."""
        if not raw:
            return Expander.compute(graph, deg, algorithm, max_num_iters, seed)
        rng = expander_generator(seed, graph.graph_id)
        edges = expander_edges(graph.num_nodes, deg, algorithm, rng=rng, max_num_iters=max_num_iters, expansion=RAW)
        return {"expander_edge_index": edges}


def raw_spectral_value(edges: np.ndarray, num_nodes: int) -> float:
    """Return the second smallest eigenvalue of D - A, where D counts loops and A does not: no Laplacian.

    A graph in pieces can so have a value above 0.

    Args:
        edges (ndarray): Both directions of every edge.
        num_nodes (int): N, at least 2.

    Shapes: edges (2, E).
    """
    degree = np.bincount(edges[0], minlength=num_nodes).astype(np.float64)
    return second_eigenvalue(degree, adjacency_without_loops(edges, num_nodes))


# Expander graphs of Exphormer's code, the quirk ``exphormer_raw_expander``: loops and repeated edges stay, in the order
# in which they were drawn, the test's degrees count loops, and its bound is that of the degree asked for, even where
# graphs with few nodes have a smaller one.
RAW = Expansion(raw_spectral_value, degree_of=lambda degree, _: degree, kept=lambda edges, _: edges)


def with_every_edge_reversed(graph: Data) -> Data:
    """Return a copy of a graph with the reverse of every edge behind its edges: the quirk ``exphormer_double_edges``.

    In a graph that is undirected already, every edge then counts twice.

    Args:
        graph (Data): Is not changed.

    Shapes: edge_index (2, E) -> (2, 2 E), edge_attr (E, D) -> (2 E, D).
    """
    graph = copy.copy(graph)
    graph.edge_index = torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1)
    if graph.edge_attr is not None:
        graph.edge_attr = torch.cat([graph.edge_attr, graph.edge_attr])
    return graph
