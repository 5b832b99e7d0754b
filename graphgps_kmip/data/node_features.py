"""Features of the nodes of one graph, changed once after loading."""

from __future__ import annotations

import copy

from torch.nn.functional import normalize
from torch_geometric.data import Data


def with_normalized_features(graph: Data) -> Data:
    """Return a copy of a graph in which the absolute features of each node sum to 1; those of zeros stay so.

    Kipf and Welling 2017, section 5.2, do so with bags of words, which have no negative features.

    Args:
        graph: is not changed.

    Shapes:
        x (N, C) -> (N, C), in floating point.
    """
    graph = copy.copy(graph)
    x = graph.x if graph.x.is_floating_point() else graph.x.float()
    graph.x = normalize(x, p=1, dim=1)
    return graph
