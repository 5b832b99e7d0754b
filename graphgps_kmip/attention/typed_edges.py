"""Typed edges: the attention graph of the low-width method, graph edges, expander edges and self loops, by kind.

Shirzad et al., whose score estimator and sparse network tell the kinds apart by one learned vector each. No tensor of
size edges times channels is made: an edge names the row of its kind.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.exphormer import EXPANDER as EXPANDER_SET
from graphgps_kmip.attention.exphormer import ExphormerState

GRAPH, EXPANDER, SELF_LOOP = 0, 1, 2
KINDS = ("graph", "expander", "self loop")  # by number


def typed_edges(context: GraphContext, self_loops: bool = True) -> Tensor:
    """Return source, target and kind of every edge of the attention graph, sorted by target.

    These are the edges of the graph, those of the edge set ``expander`` where there is one, and one self loop of each
    node. A pair that is an edge of the graph and of the expander counts twice, as does a self loop of the graph.

    Args:
        context (GraphContext): the graphs of a batch.
        self_loops (bool, optional): False leaves out the self loops, but those of the graph. (default: True)

    Shapes: (3, E), int64. Edges of a target: graph, then expander, then its self loop, each in the given order.
    """
    nothing = context.batch.new_empty(2, 0)
    num_loops = len(context.batch) if self_loops else 0
    loops = torch.arange(num_loops, device=context.batch.device).expand(2, -1)
    expander, _ = context.edge_sets.get(EXPANDER_SET, (nothing, None))
    sets = (nothing if context.edge_index is None else context.edge_index, expander, loops)  # in order of their kinds
    count, device = sum(one.size(1) for one in sets), context.batch.device
    edges = context.batch.new_empty(3, count)
    narrow = torch.int32 if len(context.batch) < 2**31 else torch.int64  # sorts in half the time and memory
    target, order = torch.cat([one[1].to(narrow) for one in sets]).sort(stable=True)
    edges[1] = target  # neighbouring targets are neighbours in memory
    del target
    kind = [
        torch.full((), number, dtype=torch.uint8, device=device).expand(one.size(1)) for number, one in enumerate(sets)
    ]
    edges[2] = torch.cat(kind)[order]
    edges[0] = torch.cat([one[0].to(narrow) for one in sets])[order]
    return edges


class TypedEdgeStart(nn.Module):
    """Make the state of the first layer: typed edges, and one learned vector for each kind.

    The state is that of Exphormer attention, without virtual nodes, so that it serves that attention, too.

    Args:
        dim (int): channels C.
        self_loops (bool, optional): see `typed_edges`. (default: True)

    Shapes: context -> state with edges (3, E) and features (3, C).
    """

    def __init__(self, dim: int, self_loops: bool = True) -> None:
        super().__init__()
        self.self_loops = self_loops
        self.types = nn.Embedding(len(KINDS), dim)

    def forward(self, context: GraphContext) -> ExphormerState:
        """Return the edges of the attention graph and the vectors of their kinds."""
        types = self.types.weight
        return ExphormerState(typed_edges(context, self.self_loops), types, types.new_empty(0, types.size(1)))
