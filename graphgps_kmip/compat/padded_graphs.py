"""Padding that counts as nodes: batches and networks that repeat this fault of the public GraphGPS and k-MIP codes.

The smaller graphs of a batch get rows of zeros up to the size of the largest one, and these take part as nodes do, so
that a graph's output depends on the other graphs of its batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.dense import to_padded
from graphgps_kmip.model.gps import GPSModel


@dataclass(frozen=True, eq=False)
class PaddedContext(GraphContext):
    """The graphs of a mini-batch with padding among their nodes.

    Args:
        real (Tensor, optional): False where a node is padding. (default: None)

    Shapes:
        real (N,) bool; else as `GraphContext`.
    """

    real: Tensor | None = None


def with_padding(x: Tensor, context: GraphContext) -> tuple[Tensor, PaddedContext]:
    """Give every graph rows of zeros, until it has as many nodes as the largest one.

    ``x[context.real]`` undoes it. What is numbered by nodes (edges, pairs) does not count these rows, so layers that
    read it must not follow.

    Args:
        x (Tensor): node features.
        context (GraphContext): the graphs.

    Shapes:
        x (N, C); returns x (B * Nmax, C) and its context. Gradients flow to x.
    """
    padded, mask = to_padded(x, context)
    ptr = torch.arange(context.num_graphs + 1, device=x.device) * context.max_nodes
    batch = torch.arange(context.num_graphs, device=x.device).repeat_interleave(context.max_nodes)
    given = {name: getattr(context, name) for name in context.__dataclass_fields__}
    return padded.flatten(0, 1), replace(PaddedContext(**given), batch=batch, ptr=ptr, real=mask.flatten())


class PaddedGPSModel(GPSModel):
    """A network whose layers see padding as nodes, as GraphGPS's whole Performer does: gt.performer.mask_keys False.

    Only for layers that read no edges. The arguments are those of `GPSModel`.
    """

    def run_layers(self, x: Tensor, context: GraphContext) -> tuple[Tensor, Tensor | None]:
        """Run the layers on padded graphs, and drop the padding: x (N, C) -> (N, C), edge_attr as it is."""
        x, context = with_padding(x, context)
        x, edge_attr = super().run_layers(x, context)
        return x[context.real], edge_attr
