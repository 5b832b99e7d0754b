"""Message passing along the edges of Exphormer attention: the ``__exp`` of the public code's gt.layer_type."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.exphormer import ExphormerStart, ExphormerState
from graphgps_kmip.errors import InputError


class ExpanderMessages(nn.Module):
    """A message passing module along graph edges and expander edges, called as an attention with a state is.

    Each expander edge has the same learned vector. New edge features of the module go on to its own next layer: they
    are its state. The public code hands them to an Exphormer branch beside it, too.

    Args:
        conv: ``(x, edge_index, edge_attr) -> (x, edge_attr)``, without a residual of nodes inside.
        dim: width C of nodes and edges.
        dropout: probability to drop what the module adds to a channel of edge features, in training only.
        add_edge_index: the graph's edges take part, ``prep.add_edge_index``.
        use_exp_edges: the edge set ``expander`` takes part where the context has it, ``prep.use_exp_edges``.

    Shapes:
        x (N, C), context, state -> (N, C), state.

    Raises:
        ValueError: no kind of edges is left.
    """

    def __init__(
        self,
        conv: nn.Module,
        dim: int,
        dropout: float = 0.0,
        *,
        add_edge_index: bool = True,
        use_exp_edges: bool = True,
    ) -> None:
        super().__init__()
        if not (add_edge_index or use_exp_edges):
            raise InputError("a branch __exp has no edges: set prep.add_edge_index or prep.use_exp_edges True")
        self.conv, self.dropout = conv, nn.Dropout(dropout)
        self.initial_state = ExphormerStart(dim, 0, add_edge_index, use_exp_edges)

    def forward(self, x: Tensor, context: GraphContext, state: ExphormerState) -> tuple[Tensor, ExphormerState]:
        """Return new node features, and the state with the new edge features."""
        edge_index, row = state.edges[:2], state.edges[2]
        old = state.features.to(x.dtype)[row]  # (E, C)
        encoding = () if getattr(self.conv, "gate", None) is None else (context.encoding,)
        x, new = self.conv(x, edge_index, old, *encoding)
        if new is old:
            return x, state
        edges = torch.cat([edge_index, torch.arange(len(new), device=new.device)[None]])
        return x, replace(state, edges=edges, features=old + self.dropout(new - old))
