"""A positional encoding of one's own: local clustering coefficients (Watts and Strogatz 1998)."""

import numpy as np
import torch
from torch_geometric.utils import remove_self_loops, to_scipy_sparse_matrix, to_undirected

from graphgps_kmip import NodeEncoding, register


@register("encoding", "Clustering")
class Clustering(NodeEncoding):
    """Local clustering coefficient: the share of a node's pairs of neighbours that are connected."""

    normalised: bool = True  # an option, posenc_Clustering.normalised; False: their number

    @staticmethod
    def compute(graph, normalised):  # a graph and the options above -> (N, num_columns)
        edges = to_undirected(remove_self_loops(graph.edge_index)[0])
        adjacency = to_scipy_sparse_matrix(edges, num_nodes=graph.num_nodes).tocsr()
        connected = (adjacency @ adjacency).multiply(adjacency).sum(axis=1).A1 / 2
        degree = adjacency.sum(axis=1).A1
        pairs = np.maximum(degree * (degree - 1) / 2, 1) if normalised else 1
        return torch.from_numpy(connected / pairs)[:, None]
