"""GD-WL with random walk probabilities (Zhang et al. 2023; PPGT paper, proposition E.1), and norms under scale (E.3).

A colour of GD-WL is the multiset of (colour of a node, its generalised distance from this one) over all nodes. With
relative random walk probabilities as distance this bounds PPGT: no function of features of pairs and multisets sees
more.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphgps_kmip.common.row_layers import NORM_LAYERS
from graphgps_kmip.encoding.rrwp import Walks, rrwp
from graphgps_kmip.errors import InputError
from graphgps_kmip.expressivity.seg_wl import Colouring, Encoding, Graph, Scheme, rounded, seg_wl, values

DECIMALS = 9  # of probabilities in float64, so that sums in another order stay equal
SCALES = (0.1, 3.0, 10.0)
NORMS = {"LN": "layer_norm", "RMSN": "rms_norm", "AdaRMSN": "ada_rms_norm"}


def gd_wl(graphs: Sequence[Graph], walks: Walks, rounds: int | None = None) -> Colouring:
    r"""Colour nodes by GD-WL with d(v, u) = (I, M, M^2, ...)_vu, rounded to `DECIMALS` decimals.

    .. math:: c^0(v) = x_v, \qquad c^l(v) = \{\{(c^{l-1}(u), d(v, u)) : u \in V\}\}

    Args:
        graphs (sequence of Graph): Without features of edges.
        walks (Walks): Which probabilities; float64.
        rounds (int, optional): How many; None: until the colours are stable. (default: ``None``)

    Raises:
        InputError: a graph has features of edges, which GD-WL does not read, or the probabilities are not float64.
    """
    if any(graph.edge_attr is not None for graph in graphs):
        raise InputError("GD-WL reads no features of edges: leave edge_attr out")
    if walks.dtype is not torch.float64:
        raise InputError(f"GD-WL compares probabilities exactly: set precision float64, got {walks.precision}")
    return seg_wl(graphs, [_scheme(graph, walks) for graph in graphs], rounds)


def _scheme(graph: Graph, walks: Walks) -> Scheme:
    size = graph.num_nodes
    pair = rounded(Encoding(pair=rrwp(graph.edge_index, size, walks).view(size, size, -1)), DECIMALS).pair
    distances = values(pair.flatten(0, 1), size * size, "the distance")
    return Scheme([()] * size, [distances[v * size : (v + 1) * size] for v in range(size)])


def scale_changes(dim: int = 16, seed: int = 0) -> dict[str, float]:
    """Return by how much each norm's output changes at most, relative to its size, where its input is scaled.

    Rows are normal, factors are `SCALES`; what is learned is random: at the start AdaRMSN has alpha 0, and is RMSN.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(64, dim, generator=generator, dtype=torch.float64)
    found = {}
    for name, key in NORMS.items():
        norm = NORM_LAYERS[key](dim).double()
        with torch.no_grad():
            for parameter in norm.parameters():
                parameter.copy_(torch.randn(dim, generator=generator, dtype=torch.float64))
            y = norm(x)
            found[name] = max(float((norm(scale * x) - y).abs().max() / y.abs().max()) for scale in SCALES)
    return found
