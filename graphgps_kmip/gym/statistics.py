"""What encodings compute of each graph: functions from graphs and settings to the attributes of each graph.

A function sees of the config only the settings, which are part of the key under which its results are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.encoding.degree import local_degree_profile, out_degrees
from graphgps_kmip.encoding.edge_walk import edge_walk_probabilities
from graphgps_kmip.encoding.electrostatic import electrostatic_statistics
from graphgps_kmip.encoding.graphormer_bias import in_and_out_degrees, path_types, shortest_distances
from graphgps_kmip.encoding.heat_kernel import heat_kernel_diagonal
from graphgps_kmip.encoding.laplacian import laplacian_eigenpairs_of
from graphgps_kmip.encoding.random_walk import return_probabilities
from graphgps_kmip.encoding.resistance import edge_resistances, embedding_width, resistance_embedding

Settings = dict[str, Any]
Attributes = list[dict[str, Tensor]]
Compute = Callable[[list[Data], Settings], Attributes]


def alone(name: str, compute: Callable[[Data, Settings], Tensor]) -> Compute:
    """Return the function that computes an attribute of one graph after the other."""
    return lambda graphs, settings: [{name: compute(graph, settings)} for graph in graphs]


def eigenpairs(vectors_name: str, values_name: str | None = None) -> Compute:
    """Return the function that computes Laplacian eigenvectors, and eigenvalues where they have a name."""

    def attributes(graphs: list[Data], settings: Settings) -> Attributes:
        given = [(graph.edge_index, graph.num_nodes) for graph in graphs]
        pairs = laplacian_eigenpairs_of(given, **settings)
        found = [{vectors_name: vectors} for _, vectors in pairs]
        if values_name is not None:  # each node carries its graph's, (N, K, 1): a batch needs to know nothing of them
            for one, (values, vectors) in zip(found, pairs, strict=True):
                one[values_name] = values.repeat(len(vectors), 1)[..., None]
        return found

    return attributes


def node_walks(graphs: list[Data], settings: Settings) -> Attributes:
    """Compute RWSE, of all graphs at once."""
    edges, sizes = _joined(graphs)
    table = return_probabilities(edges, sizes, settings["times"])
    return [{"pestat_RWSE": part} for part in table.split(sizes)]


def edge_walks(graphs: list[Data], settings: Settings) -> Attributes:
    """Compute RWSEEdge, of all graphs at once."""
    edges, sizes = _joined(graphs)
    table = edge_walk_probabilities(edges, sum(sizes), settings["times"])
    return [{"edge_pestat_RWSEEdge": part} for part in table.split([graph.num_edges for graph in graphs])]


def resistance_embeddings(graphs: list[Data], settings: Settings) -> Attributes:
    """Compute ERN: each graph's own width, then columns of zeros up to ``er_dim``."""
    found = []
    for graph in graphs:
        width = min(embedding_width(graph.num_nodes, graph.num_edges, settings["accuracy"]), settings["er_dim"])
        rng = np.random.default_rng([settings["seed"], graph.graph_id])
        embedding = resistance_embedding(graph.edge_index, graph.num_nodes, width, rng)
        found.append({"pestat_ERN": torch.nn.functional.pad(embedding, (0, settings["er_dim"] - width))})
    return found


def widest_embedding(graphs: Sequence[Data], accuracy: float) -> int:
    """Return the width that holds the embeddings of all graphs."""
    return max(embedding_width(graph.num_nodes, graph.num_edges, accuracy) for graph in graphs)


def graphormer(graphs: list[Data], settings: Settings) -> Attributes:
    """Compute degrees; distances of all pairs unless only degrees are asked for; types along paths where asked for."""
    found = []
    for graph in graphs:
        ends = graph.edge_index, graph.num_nodes
        one = dict(zip(("in_degrees", "out_degrees"), in_and_out_degrees(*ends), strict=True))
        if not settings["node_degrees_only"]:
            one["spatial_types"] = shortest_distances(*ends)
        if settings["longest"]:
            one["path_types"] = path_types(*ends, graph.edge_attr, settings["longest"])
        found.append(one)
    return found


def _joined(graphs: list[Data]) -> tuple[Tensor, list[int]]:
    """Return the edges of graphs that stand one after another, and their sizes."""
    sizes = [graph.num_nodes for graph in graphs]
    starts = torch.tensor([0, *sizes]).cumsum(0)
    return torch.cat([graph.edge_index + start for graph, start in zip(graphs, starts, strict=False)], dim=1), sizes


heat = alone("pestat_HKdiagSE", lambda graph, s: heat_kernel_diagonal(graph.edge_index, graph.num_nodes, s["times"]))
potentials = alone("pestat_ElstaticSE", lambda graph, _: electrostatic_statistics(graph.edge_index, graph.num_nodes))
resistances = alone(
    "edge_pestat_ERE", lambda graph, s: edge_resistances(graph.edge_index, graph.num_nodes, s["accuracy"])[:, None]
)
degrees = alone("pestat_Degree", lambda graph, _: out_degrees(graph.edge_index, graph.num_nodes))
degree_profiles = alone("pestat_LDP", lambda graph, _: local_degree_profile(graph.edge_index, graph.num_nodes))
