"""Exphormer attention (Shirzad et al. 2023): along graph edges, expander edges, and edges of virtual nodes.

As in the public code, scores are clamped and multiplied by edge features, and there is no output linear map.
`ExpanderMessages` is message passing along the same edges: the suffix ``__exp`` in the public code's gt.layer_type.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from graphgps_kmip.attention.clamped_attention import clamped_attention
from graphgps_kmip.attention.context import GraphContext, own_state
from graphgps_kmip.attention.edge_attention import encoded_edges
from graphgps_kmip.attention.head_arguments import check_dropout, described, dim_per_head
from graphgps_kmip.errors import InputError
from graphgps_kmip.registry import register

logger = logging.getLogger(__name__)

EXPANDER = "expander"  # name of the edge set


@dataclass(frozen=True, eq=False)
class ExphormerState:
    """State that is passed from layer to layer: all edges with their features, and the virtual nodes.

    Args:
        edges (Tensor): source, target, and row of ``features``, sorted by target.
        features (Tensor): one row per real edge, one for all expander edges, two per virtual node of a graph.
        virtual (Tensor): features of the virtual nodes; virtual node v of graph g is row ``v * B + g`` here and node
            ``N + v * B + g`` in ``edges``.

    Shapes:
        edges (3, E), features (R, C), virtual (V * B, C).
    """

    edges: Tensor
    features: Tensor
    virtual: Tensor


class ExphormerStart(nn.Module):
    """Make the state of the first layer; its learned vectors exist once in a model.

    Args:
        dim (int): channels.
        num_virt_node (int): virtual nodes V per graph.
        add_edge_index (bool): use the edges of the graph.
        use_exp_edges (bool): use the edge set ``expander``.

    Shapes:
        context with edge_attr (E, dim) -> state.

    Raises:
        ValueError: when called: the edges have no features of width dim, or the graph is sharded over processes.
    """

    def __init__(self, dim: int, num_virt_node: int, add_edge_index: bool, use_exp_edges: bool) -> None:
        super().__init__()
        self.dim, self.num_virt_node = dim, num_virt_node
        self.add_edge_index, self.use_exp_edges = add_edge_index, use_exp_edges
        self.expander = nn.Embedding(1, dim)  # without expander edges, too, as in the public code
        self.virtual, self.to_virtual, self.from_virtual = (
            nn.Embedding(num_virt_node, dim) if num_virt_node else None for _ in range(3)
        )

    def forward(self, context: GraphContext) -> ExphormerState:
        """Return all edges, their features, and the first state of the virtual nodes."""
        if context.halo is not None:
            raise InputError("Exphormer does not run on a graph sharded over processes: start a single process")
        nothing = self.expander.weight.new_empty(0, self.dim)  # in the model's dtype: it is concatenated with nodes
        edges, features, num_rows = [context.batch.new_empty(3, 0)], [nothing], 0
        for edge_index, row, rows_of_set in self._sets(context):
            edges.append(torch.cat([edge_index, row[None] + num_rows]))
            features.append(rows_of_set)
            num_rows += len(rows_of_set)
        virtual = self.virtual.weight.repeat_interleave(context.num_graphs, 0) if self.num_virt_node else nothing
        edges = torch.cat(edges, 1)
        return ExphormerState(edges[:, edges[1].argsort(stable=True)], torch.cat(features), virtual)

    def _sets(self, context: GraphContext) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield edge_index (2, E), row of each edge among the set's features (E,), and these features (R, C)."""
        if self.add_edge_index and context.edge_index is not None:
            encoded = encoded_edges("Exphormer", context, self.dim, ", or prep.add_edge_index False")
            yield context.edge_index, torch.arange(len(encoded), device=encoded.device), encoded
        if self.use_exp_edges:
            nothing = context.batch.new_empty(2, 0)
            edge_index, _ = context.edge_sets.get(EXPANDER, (nothing, None))
            yield edge_index, edge_index.new_zeros(edge_index.size(1)), self.expander.weight
        if self.num_virt_node:
            number = torch.arange(self.num_virt_node, device=context.batch.device).repeat_interleave(len(context.batch))
            node = torch.arange(len(context.batch), device=number.device).repeat(self.num_virt_node)  # (V * N,)
            virtual = len(context.batch) + number * context.num_graphs + context.batch[node]
            yield torch.stack([node, virtual]), number, self.to_virtual.weight
            yield torch.stack([virtual, node]), number, self.from_virtual.weight


@register("attention", "Exphormer", dropout="sparse_attn_dropout")
class ExphormerAttention(nn.Module):
    r"""Multi-head attention along graph edges, expander edges, and edges between nodes and virtual nodes.

    .. math::
        s_{ij} &= \exp(\mathrm{clamp}(\textstyle\sum_d (Q x_i) (K x_j) (E e_{ij}) / \sqrt{D}, -5, 5)) \\
        x_i' &= \textstyle\sum_j s_{ij} V x_j / (\sum_j s_{ij} + 10^{-6})

    All expander edges share one learned vector; each virtual node has one for its edges from the nodes, and one for its
    edges to them. A virtual node starts as a learned vector, the same in all graphs, and is then the output of the
    layer before. All layers use the edge features of the first one, whatever a message passing branch makes of them.
    Parameters that exist once for all layers are in ``initial_state``: a stack of layers keeps only the first one's.

    Args:
        dim (int): channels in and out, of edge features too.
        num_heads (int): heads; must divide dim.
        dropout (float, optional): probability to drop an attention weight, in training only (the public code has none).
            (default: 0.0)
        num_virt_node (int, optional): virtual nodes per graph, the config's ``prep.num_virt_node``. (default: 0)
        add_edge_index (bool, optional): attend along the graph's edges, ``prep.add_edge_index``. (default: True)
        use_exp_edges (bool, optional): attend along the edge set ``expander`` where the context has it,
            ``prep.use_exp_edges``. (default: True)
        use_bias (bool, optional): the four linear maps have biases. (default: False)

    Shapes:
        x (N, dim), context, state -> (N, dim), state; without a state (N, dim). A node without edges gets zeros.

    Raises:
        ValueError: an argument is out of its range, or no kind of edges is left.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        num_virt_node: int = 0,
        add_edge_index: bool = True,
        use_exp_edges: bool = True,
        use_bias: bool = False,
    ) -> None:
        super().__init__()
        dim_per_head(dim, num_heads)
        if num_virt_node < 0:
            raise InputError(f"prep.num_virt_node must be >= 0, got {num_virt_node}")
        if not (num_virt_node or add_edge_index or use_exp_edges):
            raise InputError(
                "Exphormer has no edges to attend along: set prep.add_edge_index or prep.use_exp_edges True, or "
                "prep.num_virt_node to 1 or more"
            )
        self.num_heads = num_heads
        self.num_virt_node, self.add_edge_index, self.use_exp_edges = num_virt_node, add_edge_index, use_exp_edges
        self.dropout = check_dropout(dropout)
        self.query, self.key, self.value, self.edge = (nn.Linear(dim, dim, bias=use_bias) for _ in range(4))
        self.initial_state = ExphormerStart(dim, num_virt_node, add_edge_index, use_exp_edges)

    def forward(
        self, x: Tensor, context: GraphContext | Tensor | None = None, state: ExphormerState | None = None
    ) -> Tensor | tuple[Tensor, ExphormerState]:
        """Attend along the edges of the state: x (N, dim) -> (N, dim), and the state of the next layer.

        Without a state it makes its own from the edges in the context, and returns only x, as other attentions do.
        """
        context = GraphContext.of(context, x)
        if state is None:
            state = own_state(self, context)
            if len(x) and not state.edges.size(1):
                logger.warning(
                    "Exphormer attention has no edge to attend along and returns zeros: give a GraphContext with "
                    "edge_index and edge_attr, or with the edge set 'expander', or num_virt_node of 1 or more"
                )
            return self(x, context, state)[0]
        nodes = torch.cat([x, state.virtual])  # (M, C)
        q, k, v = (self._heads(linear, nodes) for linear in (self.query, self.key, self.value))
        e = self._heads(self.edge, state.features.to(x.dtype))
        out = clamped_attention(q, k, v, e, state.edges, self.dropout if self.training else 0.0).flatten(1)
        return out[: len(x)], replace(state, virtual=out[len(x) :])

    def extra_repr(self) -> str:
        """Say dim, heads, and other options that are not the default ones."""
        return described(self, self.query.in_features, self.num_heads, use_bias=self.query.bias is not None)

    def _heads(self, linear: nn.Linear, x: Tensor) -> Tensor:
        return linear(x).unflatten(1, (self.num_heads, -1))  # (M, H, D)


class ExpanderMessages(nn.Module):
    """Message passing along graph edges and expander edges, called like an attention with a state.

    All expander edges share one learned vector. New edge features of the module are the state of its own next layer;
    the public code passes them to an Exphormer branch of the same layer, too.

    Args:
        conv (Module): ``(x, edge_index, edge_attr) -> (x, edge_attr)``, without a residual of nodes inside.
        dim (int): width C of nodes and edges.
        dropout (float, optional): probability to drop the update of a channel of edge features, in training only.
            (default: 0.0)
        add_edge_index (bool, optional): use the graph's edges, ``prep.add_edge_index``. (default: True)
        use_exp_edges (bool, optional): use the edge set ``expander`` where the context has it, ``prep.use_exp_edges``.
            (default: True)

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
