"""The head of SAN (Kreuzer et al. 2021): one prediction per graph by an MLP whose layers halve the width."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from graphgps_kmip.errors import InputError
from graphgps_kmip.model.prediction_heads import GraphHead


def san_graph_head(
    dim: int, dim_out: int, pooling: str = "mean", halvings: int = 2, act: Callable[[], nn.Module] = nn.ReLU
) -> GraphHead:
    """Return a head that pools the nodes of a graph, then applies `shrinking_mlp`.

    Args:
        dim: width C.
        dim_out: number of outputs.
        pooling: a row of ``heads.POOLINGS``.
        halvings: linear maps before the last one.
        act: builds the activation between the linear maps.

    Shapes: batch.x (N, C) -> (B, dim_out).
    """
    head = GraphHead(dim, dim_out, pooling=pooling)
    head.mlp = shrinking_mlp(dim, dim_out, halvings, act)
    return head


def shrinking_mlp(dim: int, dim_out: int, halvings: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Biased linear maps ``C -> C // 2 -> C // 4 ... -> dim_out`` with an activation between them.

    Raises:
        ValueError: no channel would be left.
    """
    widths = [dim // 2**i for i in range(halvings + 1)]
    if not widths[-1]:
        raise InputError(
            f"the head san_graph halves the width {halvings} times, and of gnn.dim_inner {dim} nothing is left: set it "
            f"to {2**halvings} or more"
        )
    hidden = [[nn.Linear(wide, narrow), act()] for wide, narrow in zip(widths, widths[1:], strict=False)]
    return nn.Sequential(*(module for pair in hidden for module in pair), nn.Linear(widths[-1], dim_out))
